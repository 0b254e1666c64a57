"""Give routes the caller of a request."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway


def gateway_of(request: Request) -> Gateway:
    """Return the parts that all requests share."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def caller_with(scope: Scope | None) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency that yields the caller, who has a scope; None: any. It raises Problem."""

    async def find_caller(request: Request) -> Caller:
        gateway = gateway_of(request)
        caller = await gateway.authenticator.caller(request.headers, scope)
        request.state.caller = caller
        return caller

    return find_caller


def base_url(request: Request) -> str:
    """Return the address under which the client reaches the gateway, without a slash at its end."""
    configured = gateway_of(request).settings.http_url
    return configured or str(request.base_url).rstrip("/")
