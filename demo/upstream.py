"""The upstream of the demo: answers everything, as slowly and as expensively as it is asked to.

    python3 demo/upstream.py 127.0.0.1:10001
    curl -i 'http://127.0.0.1:10001/?seconds=2&tokens=500'
"""

import http.server
import sys
import time
import urllib.parse


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Envoy keeps its connections

    def do_GET(self):
        wish = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        time.sleep(min(float(wish.get("seconds", 0)), 60))
        body = b"hello\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-tokens-used", wish.get("tokens", "10"))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


host, port = sys.argv[1].split(":")
http.server.ThreadingHTTPServer((host, int(port)), Upstream).serve_forever()
