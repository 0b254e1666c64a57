"""The part of Kubernetes' API that workers and the exporter use, over real HTTPS.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from imagefleet.producer.demo.local_http import LocalServer
from tests.support.certificates import make_certificate

TOKEN = "token-of-the-pod"


class KubernetesApi(LocalServer):
    """Serves `pods` of the namespace `fleet`. It refuses any other token with status 401.

    `with KubernetesApi(folder) as api: api.pods["worker-1"] = {"metadata": {…}}`
    """

    def __init__(self, folder: Path) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        """The method and the name of the pod of each request."""
        self.hanging: threading.Event | None = None
        """If it is there, no answer comes before it is set."""
        self.service_account = folder
        """The folder that the kubelet mounts into a pod."""
        context, trusted = make_certificate(folder, "localhost")
        (folder / "ca.crt").write_bytes(trusted.read_bytes())
        (folder / "token").write_text(f"{TOKEN}\n")
        (folder / "namespace").write_text("fleet")
        super().__init__(self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return what a pod finds in its environment, and where `pod_worker` finds the token."""
        return {
            "KUBERNETES_SERVICE_HOST": "localhost",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "SERVICE_ACCOUNT_OF_THE_TEST": str(self.service_account),
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                wanted = "application/merge-patch+json"
                if self.headers["content-type"] != wanted:
                    return self.send_error(415)
                return self._answer(json.loads(body)["metadata"]["annotations"])

            def _answer(self, annotations: dict[str, str]) -> None:
                if api.hanging is not None:
                    api.hanging.wait()
                folder, _, name = self.path.rpartition("/")
                api.requests.append((self.command, name))
                if self.headers["authorization"] != f"Bearer {TOKEN}":
                    return self.send_error(401)
                if folder != "/api/v1/namespaces/fleet/pods" or name not in api.pods:
                    return self.send_error(404)
                pod = api.pods[name]
                pod["metadata"].setdefault("annotations", {}).update(annotations)
                body = json.dumps(pod).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return None

            def log_message(self, format: str, *args: object) -> None:
                return None

        return Handler
