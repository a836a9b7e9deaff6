"""
What tests share.

Running Antiphon
    settings_file   refuses invalid settings files
    serving         the application on a real socket, in this process
    sockets         a WebSocket client that checks every event
    routes          the methods and paths of all routes
    ports           ports for servers that run in processes of their own
    fork_server     Antiphon in such processes, which have imported it already

Backends
    scripted        a backend in this process that follows a script
    upstream        a Chat Completions server on a real socket that follows a script
    messages_server a server of Anthropic's Messages API on a real socket, with its rules
    gemini_server   a server of Google's Gemini API on a real socket, with its rules
    message_events  parts of its streams, for what is passed through
    raw_server      a server that sends bytes: broken framing, resets, hangs
    routing         routers in front of real sockets

Translating
    build           chunks, and the events that they become
    conversation    conversations, and the messages that they become
    laws            what holds of every stream
    api_names       the names of the API in the official packages

Hosted tools
    hosted_lab      a tool that follows a test
    mcp_lab         an MCP server of the official SDK
    mcp_weather     one as a program, with a tool that the tiny model knows

Measuring
    loop_holds      how long an event loop is held
    machine         how fast this machine is now

Stores
    server_process  a server to be started, stopped, paused and restarted; the next two are such
    redis_server    a real Redis: one for the session, and private ones
    postgres_server a real PostgreSQL, likewise
    store_places    where the contract suite opens its stores
    usage_journal   whether usage is not stored yet

Deployment
    helm            renders the Helm chart with Helm as a library
"""
