"""One URL in front of any OpenAI-compatible server, and budgets that hold.

config       gateway.toml, checked: routes, the tree of budgets, tenants
tenants      which tenant a key belongs to, and the budgets that its requests spend from
bodies       what a request asks for, and writing its limit into it
appraisal    forecasts and offers of requests that arrive at the same moment
admission    how many tokens a request buys at the posted prices; pure
prices       the price of every account, moved so that its budget lasts
upstreams    which server gets a request, and which one if that fails
connections  connections to these servers: aiohttp's, with fewer layers
relay        one attempt: passes on, counts and charges what arrives
landing      asks for the final answer of one that was cut
once         one answer for every Idempotency-Key
server       decide, reserve, send, settle
admin        what operators see and change; dashboard.html is the page
records      what happened to each request
metrics      the same in numbers
intake       bodies and connections within bounds
app          every path, and the process around it
openapi      the OpenAPI document
"""
