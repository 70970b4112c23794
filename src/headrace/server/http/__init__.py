"""Monitoring over HTTP. Only here are starlette and uvicorn imported."""
