//! The image without Docker: its files, laid out by the script that the Dockerfile uses, on the libraries of its base, run as its user
//! on a root that can't be written, in namespaces of their own. What is not tried here is what only a container runtime has: its
//! seccomp profile, and the pull of the base image itself.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluice::control::xds::pb::RateLimitUnit;

use crate::ads::{config, limit};
use crate::http::{get, send};
use crate::process::Process;
use crate::ratelimit::ENVOY_GATEWAY;
use crate::ratelimit_tls::{Authority, ask, xds_port};

/// Where the base image has programs, and where this machine has them.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The shared libraries of distroless/cc: those of Debian's libc6, libgcc-s1, libstdc++6, libgomp1 and libssl3.
const LIBRARIES: [&str; 12] = [
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libgomp.so.1",
    "libssl.so.3",
    "libcrypto.so.3",
];

/// What Envoy Gateway sets beside [`ENVOY_GATEWAY`]: where its xDS server is, the certificates, and the port of the metrics.
const ENVOY_GATEWAY_TLS: [(&str, &str); 10] = [
    ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("PROMETHEUS_ADDR", ":19001"),
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The last stage of the Dockerfile.
fn dockerfile() -> String {
    let text = fs::read_to_string(repository("Dockerfile")).unwrap();
    let (_, last) = text.rsplit_once("\nFROM ").expect("it has stages");
    last.to_owned()
}

/// What follows an instruction that is there once.
fn instruction(name: &str) -> String {
    let text = dockerfile();
    let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&format!("{name} "))).collect();
    let [one] = found[..] else { panic!("one {name}: {found:?}") };
    one.to_owned()
}

/// The image, and what a runtime puts into it.
struct Image {
    root: tempfile::TempDir,
    /// The libraries that the program needs, by name.
    needs: BTreeMap<String, PathBuf>,
}

impl Image {
    fn lay_out() -> Self {
        let root = tempfile::tempdir().unwrap();
        let program = env!("CARGO_BIN_EXE_sluice");
        let script = repository("scripts/image-root.sh");
        let laid = Command::new(script).arg(program).arg(root.path()).output().unwrap();
        assert!(laid.status.success(), "{}", String::from_utf8_lossy(&laid.stderr));
        let image = Self { root, needs: libraries(program) };
        for path in image.needs.values() {
            let to = image.path(path.to_str().unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(path, to).unwrap();
        }
        for dir in ["proc", "dev", "certs"] {
            fs::create_dir_all(image.path(dir)).unwrap();
        }
        fs::write(image.path("etc/passwd"), "nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n")
            .unwrap();
        fs::write(image.path("etc/nsswitch.conf"), "hosts: files dns\n").unwrap();
        fs::write(image.path("etc/hosts"), "127.0.0.1 localhost envoy-gateway\n").unwrap();
        fs::set_permissions(image.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        image
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.root.path().join(inside.trim_start_matches('/'))
    }

    /// A program in it, as a runtime would start it. `certs` is mounted at `/certs`; `volume` is one that its user may write.
    fn run(&self, program: &[&str], certs: Option<&Path>, volume: Option<&Path>) -> Command {
        // What the script needs is in its arguments, so that the program gets the environment and nothing else.
        let script = r#"
            root=$1 certs=$2 volume=$3 user=$4 dir=$5
            shift 5
            mount --bind "$root" "$root"
            mount -t proc proc "$root/proc"
            mount --bind /dev "$root/dev"
            [ -z "$certs" ] || { mount --bind "$certs" "$root/certs" && mount -o remount,bind,ro "$root/certs"; }
            mount -o remount,bind,ro "$root"
            [ -z "$volume" ] || mount --bind "$volume" "$root/var/lib/sluice"
            exec setpriv --no-new-privs unshare --root "$root" --wd "$dir" --setgid "${user#*:}" --setuid "${user%:*}" "$@"
        "#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", script, "sh"]).arg(self.root.path());
        command.arg(certs.unwrap_or(Path::new(""))).arg(volume.unwrap_or(Path::new("")));
        command.args([instruction("USER"), instruction("WORKDIR")]).args(program);
        command.env_clear().env("PATH", PATH);
        let variables = instruction("ENV");
        command.envs(variables.split(' ').map(|pair| pair.split_once('=').unwrap()));
        command
    }
}

/// The libraries that a program is linked to, as this machine finds them.
fn libraries(program: &str) -> BTreeMap<String, PathBuf> {
    let listed = Command::new("ldd").arg(program).output().expect("ldd must run");
    let text = String::from_utf8(listed.stdout).unwrap();
    let mut libraries = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("linux-vdso")) {
        let (name, rest) = line.split_once(" => ").unwrap_or((line, line));
        let path = rest.split(" (").next().unwrap();
        assert!(Path::new(path).is_absolute(), "{line}");
        let name = Path::new(name.split(" (").next().unwrap()).file_name().unwrap();
        libraries.insert(name.to_str().unwrap().to_owned(), PathBuf::from(path));
    }
    assert!(libraries.contains_key("libc.so.6"), "{text}");
    libraries
}

/// Runs one of the ignored tests below in a network and with mounts of its own.
fn inside(test: &str) {
    let id = Command::new("id").arg("-u").output().expect("id must run");
    assert_eq!(
        id.stdout, b"0\n",
        "the image is run as another user, with mounts and a network of its own: only root can do that. \
         A container will do: docker run --privileged"
    );
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-euc", "ip link set lo up; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .expect("unshare must run");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complained}");
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Nobody, without a capability and without a way to one.
fn assert_is_nobody(process: &Process) {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    for line in
        ["Uid:\t65534\t65534", "Gid:\t65534\t65534", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"]
    {
        assert!(status.contains(line), "{line} in {status}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.lines().any(|line| line.trim_end() == "Groups:"), "{status}");
}

#[test]
fn the_base_image_has_every_library() {
    let needs = libraries(env!("CARGO_BIN_EXE_sluice"));
    let missing: Vec<&String> = needs.keys().filter(|name| !LIBRARIES.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "distroless/cc doesn't have {missing:?}");
}

/// The stages are of one Debian, so that the C library fits; the labels say what it is; nothing is left out that is laid out.
#[test]
fn the_dockerfile_says_what_is_tested() {
    let text = fs::read_to_string(repository("Dockerfile")).unwrap();
    let argument = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("ARG {name}=")));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    assert!(argument("RUST_IMAGE").ends_with("-bookworm"));
    assert_eq!(argument("BASE_IMAGE"), "gcr.io/distroless/cc-debian12");
    assert_eq!(argument("VERSION"), env!("CARGO_PKG_VERSION"));
    for label in ["version=\"${VERSION}\"", "revision=\"${REVISION}\"", "source=\"${SOURCE}\"", "licenses="] {
        assert!(text.contains(&format!("org.opencontainers.image.{label}")), "{label}");
    }
    let image = Image::lay_out();
    let copies = dockerfile();
    for path in ["usr/local/bin/", "bin/", "etc/sluice", "var/lib/sluice"] {
        assert!(image.path(path).is_dir(), "{path}");
        assert!(copies.contains(&format!(" /image/{path} /{path}\n")), "{path} is not copied");
    }
    assert_eq!(fs::read_link(image.path("bin/ratelimit")).unwrap(), Path::new("/usr/local/bin/sluice"));
    assert_eq!(instruction("USER"), "65534:65534");
    assert_eq!(
        (instruction("ENTRYPOINT"), instruction("CMD")),
        (r#"["sluice"]"#.into(), r#"["serve"]"#.into())
    );
}

#[test]
fn in_the_place_of_ratelimit_with_envoy_gateways_exact_environment() {
    inside("image::ratelimit_inside");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in a namespace that another test makes"]
async fn ratelimit_inside() {
    let image = Image::lay_out();
    let authority = Authority::new();
    let ads = xds_port(&authority, "envoy-gateway", SocketAddr::from(([0, 0, 0, 0], 18001))).await;
    let certs = tempfile::tempdir().unwrap();
    fs::set_permissions(certs.path(), PermissionsExt::from_mode(0o755)).unwrap();
    authority.mount(certs.path(), "*.envoy-gateway-system");
    let mut command = image.run(&["/bin/ratelimit"], Some(certs.path()), None);
    command.envs(ENVOY_GATEWAY).envs(ENVOY_GATEWAY_TLS);
    let mut process = Process::start("ratelimit", &mut command);
    for (name, port) in [("grpc", 8081), ("admin", 8080), ("debug", 6070), ("metrics", 19001)] {
        assert_eq!(process.line(&format!("{name} listening on ")).await, format!("0.0.0.0:{port}"));
    }
    assert_is_nobody(&process);
    let health = get(local(8080), "/healthcheck").await;
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));

    ads.accepted("1", &[config("default/eg/http", [limit("user", "", 5, RateLimitUnit::Minute)])]).await;
    let said = ask(&authority, "127.0.0.1:8081", "in default/eg/http: user=eve", None).await;
    assert_eq!(said.as_deref(), Ok("ok 4/5 minute"));
    let metrics = get(local(19001), "/metrics").await.body;
    assert!(
        metrics.contains("ratelimit_service_rate_limit_total_hits{domain=\"default/eg/http\""),
        "{metrics}"
    );
    assert!(metrics.lines().any(|line| line.starts_with("process_resident_memory_bytes ")), "{metrics}");
    assert!(get(local(6070), "/rlconfig").await.body.contains("default/eg/http:user:minute"));

    process.signal("TERM");
    assert!(process.exit().await.success(), "{}", process.stderr());
    let log = process.stderr();
    assert!(log.contains("SLUICE_STATE_DIR can't be written"), "{log}");
    assert!(
        log.contains("these variables have no effect here: GRPC_SERVER_TLS_CA_CERT, PROMETHEUS_MAPPER_YAML"),
        "{log}"
    );
}

#[test]
fn as_it_starts_by_itself() {
    inside("image::serve_inside");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in a namespace that another test makes"]
async fn serve_inside() {
    let image = Image::lay_out();
    let start = async |volume: Option<&Path>| {
        let mut process = Process::start("sluice", &mut image.run(&["sluice", "serve"], None, volume));
        assert_eq!(process.line("grpc listening on ").await, "0.0.0.0:8081");
        assert_eq!(process.line("admin listening on ").await, "127.0.0.1:8080");
        assert_is_nobody(&process);
        process
    };
    let put = async || {
        let limit = r#"{"key": "mine", "kind": "rolling", "capacity": 3, "window_seconds": 60}"#;
        send(local(8080), "PUT", "/v1/limits", &[], limit).await
    };
    let stop = async |mut process: Process| {
        process.signal("TERM");
        assert!(process.exit().await.success(), "{}", process.stderr());
    };
    // Without a place to write it serves all the same, and refuses what it could not remember.
    let process = start(None).await;
    let asked = r#"{"domain": "demo", "descriptors": [{"entries": [{"key": "path", "value": "/hello"}]}]}"#;
    assert_eq!(send(local(8080), "POST", "/json", &[], asked).await.status, 200);
    let refused = put().await;
    assert_eq!(refused.status, 500, "{refused:?}");
    assert!(refused.body.contains("it could not be saved, so nothing was changed"), "{refused:?}");
    stop(process).await;

    // On a volume it remembers.
    let volume = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(volume.path(), Some(65534), Some(65534)).unwrap();
    let process = start(Some(volume.path())).await;
    assert_eq!(put().await.status, 200);
    stop(process).await;
    let process = start(Some(volume.path())).await;
    assert_eq!(get(local(8080), "/v1/limits/mine").await.json()["capacity"], 3);
    stop(process).await;
}
