#!/usr/bin/env bash
# The pictures of the page in docs/images: Sluice with the limits of the demo, some tenants that ask it, and Chromium without a window.
#
# usage: screenshot.sh [SLUICE]      SLUICE is the program, target/release/sluice if it is not given
#
# It needs python3 and Chromium (CHROMIUM, or chromium in the path), and takes a bit more than a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sluice=$(realpath "${1:-target/release/sluice}")
chromium=${CHROMIUM:-chromium}
dir=$(mktemp -d)
server=
stop() {
    if [[ -n $server ]]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$dir"
}
trap stop EXIT

# More requests than the demo allows, so that there is something to see in a minute.
cp -r demo/config "$dir/config"
sed -i 's/{name: rpm, kind: rolling, capacity: 5,/{name: rpm, kind: rolling, capacity: 30,/' "$dir/config/limits/llm.yaml"

# In that directory, because the page shows the paths of files.
(cd "$dir" && exec "$sluice" serve --ledger memory --grpc 127.0.0.1:0 --admin 127.0.0.1:0 >addresses 2>log) &
server=$!
admin=
for ((n = 0; n < 100; n++)); do
    admin=$(sed -n 's/^admin listening on //p' "$dir/addresses" 2>/dev/null || true)
    [[ -z $admin ]] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
[[ -n $admin ]] || {
    cat "$dir/log" >&2
    exit 1
}

python3 - "$admin" "$chromium" "$dir/profile" docs/images <<'PYTHON'
import base64, json, os, random, subprocess, sys, threading, time, urllib.error, urllib.request

admin, chromium, profile, images = sys.argv[1:]
SIZE = {"width": 1440, "height": 1120, "deviceScaleFactor": 1, "mobile": False}
LOAD_SECONDS = 60
# How many requests a second each tenant makes, for how many tokens, and how many of those it really takes.
TENANTS = {
    "acme": (1.1, 300, 0.7),
    "bob": (0.3, 500, 0.5),
    "eve": (0.15, 3000, 1.7),
    "globex": (0.15, 700, 0.8),
    "initech": (0.2, 200, 0.9),
}


def ask(descriptors):
    """One call, as Envoy makes it. A denial is an answer too."""
    body = json.dumps({"domain": "llm", "descriptors": descriptors}).encode()
    request = urllib.request.Request(f"http://{admin}/json", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 429:
            raise
        return {}


def call(tenant, tokens, taken):
    """A request of the gateway: it reserves, takes its time, and says what it took."""
    entry = {"key": "tenant", "value": tenant}
    model = {"key": "model", "value": "gpt-4o"}
    answer = ask([{"entries": [entry], "hitsAddend": tokens}, {"entries": [entry, model]}])
    lease = answer.get("dynamicMetadata", {}).get("lease_id")
    if lease:
        time.sleep(random.uniform(0.2, 1.0))
        ask([{"entries": [{"key": "lease_id", "value": lease}], "hitsAddend": int(tokens * taken)}])


def load(tenant, rate, tokens, taken, until):
    while time.monotonic() < until:
        threading.Thread(target=call, args=(tenant, tokens, taken), daemon=True).start()
        time.sleep(random.expovariate(rate))


class Page:
    """A tab of Chromium, through the pipes of --remote-debugging-pipe: messages that end with a zero byte."""

    def __init__(self):
        ours, self.write = os.pipe()
        self.read, theirs = os.pipe()
        # Chromium takes messages from descriptor 3 and answers on 4. The shell moves them there.
        command = f'exec "$0" "$@" 3<&{ours} 4>&{theirs}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        arguments = ["bash", "-c", command, chromium, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*arguments, "about:blank"], pass_fds=(ours, theirs), **quiet)
        os.close(ours)
        os.close(theirs)
        self.number, self.rest, self.session = 0, b"", None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                read = os.read(self.read, 1 << 16)
                if not read:
                    raise SystemExit("Chromium has ended")
                self.rest += read
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]


# The same load each time.
random.seed(1)
page = Page()
try:
    page.send("Emulation.setDeviceMetricsOverride", **SIZE)
    page.send("Page.navigate", url=f"http://{admin}/")
    until = time.monotonic() + LOAD_SECONDS
    loads = [threading.Thread(target=load, args=(tenant, *what, until)) for tenant, what in TENANTS.items()]
    for one in loads:
        one.start()
    time.sleep(LOAD_SECONDS - 2)
    for name, scheme in [("page.png", "light"), ("page-dark.png", "dark")]:
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        time.sleep(0.5)
        picture = base64.b64decode(page.send("Page.captureScreenshot", format="png")["data"])
        with open(os.path.join(images, name), "wb") as file:
            file.write(picture)
        print(f"{images}/{name}: {len(picture)} bytes")
finally:
    page.process.terminate()
    page.process.wait()
PYTHON
