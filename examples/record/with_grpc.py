"""Record gRPC: one interceptor at each end records every call as a message, and its answer as another.

    pip install grpcio
    python with_grpc.py
    antecede verify traces

The id of a message travels in the metadata of its call. A server that runs several calls at the same time is one
process here: whatever it sends counts as an effect of everything that it got before.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from antecede.record import Recorder


class RecordingServer(grpc.ServerInterceptor):
    """Records requests when they reach their handler, and answers before they leave."""

    def __init__(self, me: Recorder) -> None:
        self.me = me

    def intercept_service(self, proceed: Any, details: Any) -> Any:
        handler = proceed(details)
        if handler is None or handler.unary_unary is None:
            return handler

        def recorded(request: Any, context: grpc.ServicerContext) -> Any:
            metadata = dict(context.invocation_metadata())
            self.me.delivered(metadata["message-id"])
            answer = handler.unary_unary(request, context)
            answer_id = self.me.sent(to=metadata["caller"])
            context.set_trailing_metadata([("message-id", answer_id)])
            return answer

        return grpc.unary_unary_rpc_method_handler(recorded, handler.request_deserializer, handler.response_serializer)


class RecordingClient(grpc.UnaryUnaryClientInterceptor):
    """Records requests before they leave, and answers when they have come."""

    def __init__(self, me: Recorder, server: str) -> None:
        self.me = me
        self.server = server

    def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        message_id = self.me.sent(to=self.server, label=details.method)
        extra = [("message-id", message_id), ("caller", self.me.process)]
        call = proceed(details._replace(metadata=[*(details.metadata or ()), *extra]), request)
        self.me.delivered(dict(call.trailing_metadata())["message-id"])  # waits for the answer
        return call


def serve(name: str, answer: Any) -> tuple[grpc.Server, int]:
    """Start a server with one method, ``/shop/NAME``; return it and its port."""
    server = grpc.server(ThreadPoolExecutor(1), interceptors=[RecordingServer(recorders[name])])
    method = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop", {name: method})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def call(me: Recorder, name: str, text: bytes) -> bytes:
    """Call the method of a server."""
    with grpc.insecure_channel(f"127.0.0.1:{ports[name]}") as plain:
        channel = grpc.intercept_channel(plain, RecordingClient(me, name))
        return channel.unary_unary(f"/shop/{name}")(text)


recorders = {name: Recorder(f"traces/{name}.jsonl", mode="w") for name in ("checkout", "billing", "shipping")}
shipping, shipping_port = serve("shipping", lambda request, context: b"shipped: " + request)
ports = {"shipping": shipping_port}
billing, ports["billing"] = serve("billing", lambda request, context: call(recorders["billing"], "shipping", request))
print(call(recorders["checkout"], "billing", b"tea").decode())
for server in (billing, shipping):
    server.stop(None).wait()
