"""
Shared test support.

Running Antiphon
    settings_file   refuses invalid settings files
    serving         the application on a real socket, in this process
    sockets         a WebSocket client that checks every event
    routes          the methods and paths of all routes
    ports           ports for servers in separate processes
    fork_server     Antiphon in forked processes with warm imports

Backends
    scripted        a scripted backend in this process
    upstream        a scripted Chat Completions server on a real socket
    messages_server an Anthropic Messages server on a real socket, with its rules
    gemini_server   a Gemini server on a real socket, with its rules
    message_events  parts of its streams, for passthrough
    raw_server      a server that sends bytes: broken framing, resets, hangs
    routing         routers in front of real sockets

Translating
    build           chunks and the resulting events
    conversation    conversations and the resulting messages
    laws            laws for every stream
    api_names       API names in the official packages

Hosted tools
    hosted_lab      a scripted tool
    mcp_lab         an MCP server with the official SDK
    mcp_weather     an MCP program with a tool that the tiny model knows

Measuring
    loop_holds      how long an event loop is held
    machine         how fast this machine is now

Stores
    server_process  a server to start, stop, pause and restart; the base of the next two
    redis_server    a real Redis: one per session, and private ones
    postgres_server a real PostgreSQL, likewise
    store_locations stores for the contract suite
    usage_journal   detects unstored usage

Deployment
    helm            renders the Helm chart with Helm as a library
"""
