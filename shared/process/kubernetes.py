"""Read and annotate pods, for a process that itself runs in a pod of a Kubernetes cluster.

Input: the service account that the kubelet mounts into the pod. Output: what the API server says of
pods in the same namespace. Two requests are all that is used of the API, so this takes no client
library.

Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

import json
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder into which the kubelet mounts the token, the certificate and the namespace."""
SERVER_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
"""The environment variable in which each pod finds the address of the API server."""
_REFUSALS: Final = (401, 403, 404)
_MAX_ANSWER_BYTES: Final = 4 << 20


class KubernetesError(Exception):
    """The API server did not answer. The message says why."""


class KubernetesRefusal(KubernetesError):
    """The API server refused the request: a wrong token, no right to it, or no such pod."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """It is the status of HTTP: 401, 403 or 404."""


class Pods:
    """The pods of the namespace in which this process runs. Threads may share it."""

    def __init__(self, server: str, folder: Path) -> None:
        """
        Args:
            server: address of the API server, as in `https://10.0.0.1:443`.
            folder: holds `token`, `ca.crt` and `namespace`.

        Raises:
            OSError: a file of `folder` cannot be read.
        """
        self._token = folder / "token"
        namespace = quote((folder / "namespace").read_text().strip(), safe="")
        self._address = f"{server}/api/v1/namespaces/{namespace}/pods/"
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        # The API server is inside the cluster, so a proxy for the Internet does not know it.
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))

    @classmethod
    def of_this_cluster(cls) -> "Pods | None":
        """Return the pods of this process's namespace; None outside a pod, or without a token."""
        host, port = os.environ.get(SERVER_VARIABLE), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not (SERVICE_ACCOUNT / "token").exists():
            return None
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port or 443}", SERVICE_ACCOUNT)

    def read(self, name: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the pod `name` as the API describes it. It needs the right to `get` pods.

        Raises:
            KubernetesRefusal: the token has no right to it, or there is no such pod.
            KubernetesError: there is no answer within `timeout_s`, or it is not a pod.
        """
        return self._send("GET", name, timeout_s=timeout_s)

    def annotate(self, name: str, annotations: Mapping[str, str], *, timeout_s: float) -> None:
        """Set annotations of the pod `name`; others stay. It needs the right to `patch` pods.

        Raises:
            KubernetesRefusal: the token has no right to it, or there is no such pod.
            KubernetesError: there is no answer within `timeout_s`.
        """
        body = json.dumps({"metadata": {"annotations": dict(annotations)}}).encode()
        self._send("PATCH", name, body, timeout_s=timeout_s)

    def _send(
        self, method: str, name: str, body: bytes | None = None, *, timeout_s: float
    ) -> dict[str, Any]:
        try:
            # Kubernetes replaces the token about once an hour, so it is read for each request.
            headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            request = Request(self._address + quote(name, safe=""), body, headers, method=method)
            with self._opener.open(request, timeout=timeout_s) as answer:
                pod = json.loads(answer.read(_MAX_ANSWER_BYTES))
        except HTTPError as error:
            text = f"{method} pod {name}: {error}"
            if error.code in _REFUSALS:
                raise KubernetesRefusal(text, error.code) from error
            raise KubernetesError(text) from error
        except (OSError, ValueError, HTTPException) as error:
            raise KubernetesError(f"{method} pod {name}: {error}") from error
        if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict):
            raise KubernetesError(f"{method} pod {name}: the answer describes no pod")
        return pod
