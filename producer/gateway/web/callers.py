"""Give routes the caller of a request."""

from typing import Final

from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway


def gateway_of(request: Request) -> Gateway:
    """Return the parts that all requests share."""
    gateway: Gateway = request.app.state.gateway
    return gateway


class FindCaller:
    """This dependency of a route yields its caller, who has a scope; None: any. It raises
    Problem."""

    def __init__(self, scope: Scope | None) -> None:
        self.scope: Final = scope

    async def __call__(self, request: Request) -> Caller:
        peer = request.client.host if request.client is not None else ""
        authenticator = gateway_of(request).authenticator
        caller = request.state.caller = await authenticator.find(request.headers, peer)
        await authenticator.check(caller, self.scope)
        return caller


def caller_with(scope: Scope | None) -> FindCaller:
    """Return a dependency that yields the caller, who has a scope; None: any. It raises Problem."""
    return FindCaller(scope)


def base_url(request: Request) -> str:
    """Return the address under which the client reaches the gateway, without a slash at its end."""
    configured = gateway_of(request).settings.http_url
    return configured or str(request.base_url).rstrip("/")
