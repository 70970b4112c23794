"""Monitoring over HTTP. The only door to starlette and uvicorn."""
