// The official client for Node, unchanged: prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 2 });
const question = { model: "m", messages: [{ role: "user", content: "What is 2 + 3?" }] };
const answer = await client.chat.completions.create({ ...question, max_tokens: 20 });
let parts = 0;
for await (const part of await client.chat.completions.create({ ...question, max_tokens: 20, stream: true })) {
  if (part.choices[0]?.delta?.content) parts += 1;
}
const models = await client.models.list();
let declined = null;
for (let number = 0; number < 20 && !declined; number++) {
  try {
    await client.chat.completions.create(question);
  } catch (error) {
    declined = { status: error.status, code: error.code, type: error.type };
  }
}
console.log(JSON.stringify({ tokens: answer.usage.completion_tokens, parts, models: models.data.map((m) => m.id), declined }));
