"""One URL in front of any OpenAI-compatible server, and budgets that hold.

config      gateway.toml, checked: routes, the tree of budgets, tenants
tenants     whose key a request carries, and the budgets that it spends from
bodies      what a request asks for, and its limit written into it
appraisal   forecasts and offers of requests that arrive in the same moment
admission   how many tokens a request buys at the posted prices; pure
prices      the price of every account, moved so that its budget lasts
upstreams   which server gets a request, and which one if that fails
connections to them: aiohttp's, with fewer layers
relay       one attempt: what arrives is passed on, counted and charged
landing     the final answer of one that was cut
once        one answer for every Idempotency-Key
server      decide, reserve, send, settle
admin       what operators see and change; dashboard.html is the page
records     what happened to each request; metrics: in numbers
intake      bodies and connections within bounds
app         every path, and the process around it
openapi     the interface, for programs
"""
