"""The request forms: KServe v2 over HTTP and gRPC, generate, OpenAI, Anthropic, SGLang."""
