"""One URL in front of any OpenAI-compatible server, and a budget of output tokens that holds.

bodies     what a request asks for, and its limit written into it
admission  how many tokens a request buys at the posted price; pure
relay      what arrives is passed on, counted and charged
server     the endpoint: reserve, forward, settle
"""
