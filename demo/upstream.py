"""The model of the demo: answers like OpenAI's chat completions, as slowly and as expensively as it is asked to.

    python3 demo/upstream.py 127.0.0.1:10001
    curl 'http://127.0.0.1:10001/v1/chat/completions?seconds=2&tokens=500' -d '{"model": "gpt-4o"}'

`stream` and `stream_options.include_usage` mean what they mean there.
"""

import http.server
import json
import sys
import time
import urllib.parse

WORDS = ["Water", " finds", " its", " way", "."]


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Envoy keeps its connections

    def do_GET(self):
        self.answer("text/plain", b"ready\n")

    def do_POST(self):
        try:
            asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
            model, stream = asked["model"], asked.get("stream", False)
        except (ValueError, KeyError, TypeError):
            error = {"error": {"message": "a JSON body with a model is needed", "type": "invalid_request_error"}}
            self.answer("application/json", encoded(error), 400)
            return
        wish = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        seconds, tokens = min(float(wish.get("seconds", 0)), 60), int(wish.get("tokens", 42))
        usage = {"prompt_tokens": 12, "completion_tokens": tokens - 12, "total_tokens": tokens}
        if stream:
            with_usage = (asked.get("stream_options") or {}).get("include_usage", False)
            self.stream(model, seconds, usage if with_usage else None)
            return
        time.sleep(seconds)
        message = {"role": "assistant", "content": "".join(WORDS)}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        answer = {"object": "chat.completion", "model": model, "choices": choices, "usage": usage}
        self.answer("application/json", encoded(answer) + b"\n")

    def stream(self, model, seconds, usage):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for word in WORDS:
            time.sleep(seconds / len(WORDS))
            self.event(encoded(chunk(model, [{"index": 0, "delta": {"content": word}, "finish_reason": None}])))
        self.event(encoded(chunk(model, [{"index": 0, "delta": {}, "finish_reason": "stop"}])))
        if usage is not None:
            self.event(encoded(chunk(model, []) | {"usage": usage}))
        self.event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        event = b"data: " + data + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def answer(self, content_type, body, status=200):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def chunk(model, choices):
    return {"object": "chat.completion.chunk", "model": model, "choices": choices}


def encoded(value):
    return json.dumps(value, separators=(",", ":")).encode()


host, port = sys.argv[1].split(":")
http.server.ThreadingHTTPServer((host, int(port)), Model).serve_forever()
