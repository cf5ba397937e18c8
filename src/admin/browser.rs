//! What a web page may not do: a browser on this machine, or near it, reaches this port for every page that it shows.
//!
//! A page of another site can send a POST without asking anybody, if its content type is one of a form's or text. It can
//! also give its own name our address (DNS rebinding), and then the browser takes us for that site: it sends any method and
//! reads the answers, with that name as `host` and in `origin`. So a call that may change something needs all of these:
//!
//! * `host`, where it is there, is this machine's: an IP address, `localhost` or the machine's own name. A page can't make a
//!   browser say another `host` than the name in its address, and what is an address needs no DNS. No browser leaves it out.
//! * `origin`, where it is there, is the page that we are: the same as `host`, or both of them loopback with the same port.
//!   Browsers always send it with a call that is no read. `null` is some page's.
//! * `content-type` is `application/json` where there is a body (POST, PUT, PATCH): a browser asks first before it sends that
//!   to another site, and we don't answer such questions. A program may leave it out: a page that does so is known by its
//!   `origin`.
//!
//! Reads change nothing, with one exception: a GET may pick up a lease. So a GET may do that only if `host` and `origin` are
//! ours as above, and `sec-fetch-site`, where it is there, says that the call comes from our own page or from none. Browsers
//! leave out the `origin` of a plain GET.
//!
//! A name in DNS proves nothing, so the name of a Kubernetes service is foreign too. Who calls by such a name sends the token,
//! which the port needs anyway beyond loopback.

use std::net::IpAddr;
use std::sync::LazyLock;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use super::error::ApiError;

/// Where a browser says a call comes from: a page of the same origin, of another one, or none, as when an address is typed.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// This machine's name, as its kernel has it.
static MACHINE: LazyLock<String> =
    LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().into_owned());

/// Why a call that carries no token is refused for the `host` or the `origin` that it says, if it is.
pub(crate) fn foreign(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<ApiError> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let foreign = |error: &str, detail: &str| Some(ApiError::new(StatusCode::FORBIDDEN, error, detail));
    if !is_host_ours(uri, headers) {
        return foreign(
            "foreign_host",
            "`host` must be an IP address, localhost or this machine's name, unless the call carries the admin token",
        );
    }
    if !is_origin_ours(headers) {
        return foreign("foreign_origin", "no other site's page may make this call without the admin token");
    }
    None
}

/// Why a call that carries no token is refused, if it is.
pub(crate) fn refusal(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<ApiError> {
    if let Some(error) = foreign(method, uri, headers) {
        return Some(error);
    }
    let has_body = matches!(*method, Method::POST | Method::PUT | Method::PATCH);
    if has_body && !is_json(headers) {
        let detail = "`content-type` must be application/json";
        return Some(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
    }
    None
}

/// Whether no page of another site makes this call, as far as its browser says so. For reads that do more than read.
pub(crate) fn is_of_no_other_site(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_from_here = match only(headers, FETCH_SITE) {
        Ok(None) => true,
        Ok(Some(site)) => site == "same-origin" || site == "none",
        Err(Several) => false,
    };
    is_from_here && is_host_ours(uri, headers) && is_origin_ours(headers)
}

/// Whether all that a call says of its host names this machine.
fn is_host_ours(uri: &Uri, headers: &HeaderMap) -> bool {
    let by_header = match only(headers, header::HOST) {
        Ok(None) => true,
        Ok(Some(host)) => authority(host).is_some_and(|host| is_ours(&host)),
        Err(Several) => false,
    };
    by_header && uri.authority().is_none_or(is_ours)
}

fn is_origin_ours(headers: &HeaderMap) -> bool {
    let (origin, host) = match (only(headers, header::ORIGIN), only(headers, header::HOST)) {
        (Ok(None), Ok(_)) => return true,
        (Ok(Some(origin)), Ok(Some(host))) => (origin.to_str().ok(), authority(host)),
        _ => return false,
    };
    let Some((scheme, place)) = origin.and_then(|origin| origin.split_once("://")) else { return false };
    let port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let (Some(origin), Some(host)) = (place.parse::<Authority>().ok(), host) else { return false };
    let (origin_port, host_port) = (origin.port_u16().unwrap_or(port), host.port_u16().unwrap_or(port));
    let is_same = name(&origin).eq_ignore_ascii_case(name(&host));
    is_ours(&origin) && origin_port == host_port && (is_same || (is_loopback(&origin) && is_loopback(&host)))
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = match only(headers, header::CONTENT_TYPE) {
        Ok(Some(value)) => value,
        Ok(None) => return !headers.contains_key(header::ORIGIN),
        Err(Several) => return false,
    };
    let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// There is more than one, and no telling which counts.
struct Several;

fn only(headers: &HeaderMap, name: HeaderName) -> Result<Option<&HeaderValue>, Several> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Several),
    }
}

fn authority(value: &HeaderValue) -> Option<Authority> {
    value.to_str().ok()?.parse().ok()
}

/// Without brackets, without the dot that ends a full name.
fn name(authority: &Authority) -> &str {
    let host = authority.host();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host)
}

fn is_ours(authority: &Authority) -> bool {
    let name = name(authority);
    // `user@host` is in no `host` that a program sends.
    let is_plain = !authority.as_str().contains('@');
    is_plain
        && (name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || name.eq_ignore_ascii_case(&MACHINE))
}

fn is_loopback(authority: &Authority) -> bool {
    let name = name(authority);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = "content-type: application/json";

    fn headers(lines: &[&str]) -> HeaderMap {
        let header = |line: &&str| {
            let (name, value) = line.split_once(": ").expect("name: value");
            (name.parse::<HeaderName>().expect("a name"), value.parse::<HeaderValue>().expect("a value"))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(header) {
            headers.append(name, value);
        }
        headers
    }

    /// The error that these headers get; empty if none.
    fn said(method: Method, lines: &[&str]) -> String {
        refusal(&method, &Uri::from_static("/json"), &headers(lines))
            .map(|error| error.code().to_owned())
            .unwrap_or_default()
    }

    #[test]
    fn hosts_and_origins() {
        let machine = format!("host: {}:8080", *MACHINE);
        for (host, origin, expected) in [
            // Programs send no origin.
            ("", "", ""),
            ("host: 127.0.0.1:8080", "", ""),
            ("host: 10.1.2.3:8080", "", ""),
            ("host: [::1]:8080", "", ""),
            ("host: localhost", "", ""),
            ("host: LOCALHOST.:8080", "", ""),
            (&machine, "", ""),
            ("host: evil.example:8080", "", "foreign_host"),
            ("host: sluice.default.svc:8080", "", "foreign_host"),
            ("host: localhost.evil.example:8080", "", "foreign_host"),
            ("host: 127.0.0.1.evil.example", "", "foreign_host"),
            ("host: localhost@evil.example", "", "foreign_host"),
            ("host: evil.example@localhost", "", "foreign_host"),
            ("host: ", "", "foreign_host"),
            // Our own page.
            ("host: 127.0.0.1:8080", "origin: http://127.0.0.1:8080", ""),
            ("host: localhost:8080", "origin: http://127.0.0.1:8080", ""),
            ("host: [::1]:8080", "origin: http://localhost:8080", ""),
            ("host: localhost", "origin: http://localhost:80", ""),
            ("host: localhost:443", "origin: https://localhost", ""),
            ("host: 10.1.2.3:8080", "origin: http://10.1.2.3:8080", ""),
            // Other pages.
            ("host: 127.0.0.1:8080", "origin: http://evil.example", "foreign_origin"),
            ("host: 127.0.0.1:8080", "origin: http://127.0.0.1:3000", "foreign_origin"),
            ("host: 127.0.0.1:8080", "origin: http://203.0.113.9:8080", "foreign_origin"),
            ("host: 10.1.2.3:8080", "origin: http://localhost:8080", "foreign_origin"),
            ("host: 127.0.0.1:8080", "origin: null", "foreign_origin"),
            ("host: 127.0.0.1:8080", "origin: file://", "foreign_origin"),
            ("host: 127.0.0.1:8080", "origin: ", "foreign_origin"),
            ("", "origin: http://127.0.0.1:8080", "foreign_origin"),
            // A name that was given our address.
            ("host: evil.example:8080", "origin: http://evil.example:8080", "foreign_host"),
        ] {
            let lines: Vec<&str> = [host, origin, JSON].into_iter().filter(|line| !line.is_empty()).collect();
            for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
                assert_eq!(said(method.clone(), &lines), expected, "{method} {lines:?}");
            }
            assert_eq!(said(Method::GET, &lines), "", "{lines:?}");
            assert_eq!(said(Method::HEAD, &lines), "", "{lines:?}");
        }
        let twice = ["host: localhost", "host: evil.example", JSON];
        assert_eq!(said(Method::POST, &twice), "foreign_host");
    }

    #[test]
    fn content_types() {
        for (kind, is_taken) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("text/plain; application/json", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data", false),
            ("application/jsonp", false),
            ("", false),
        ] {
            let line = format!("content-type: {kind}");
            let expected = if is_taken { "" } else { "unsupported_media_type" };
            for method in [Method::POST, Method::PUT] {
                assert_eq!(said(method.clone(), &["host: localhost", &line]), expected, "{method} {kind}");
            }
            assert_eq!(said(Method::DELETE, &["host: localhost", &line]), "", "{kind}");
        }
        assert_eq!(said(Method::POST, &["host: localhost"]), "", "a program that says nothing");
        let page = ["host: localhost", "origin: http://localhost"];
        assert_eq!(said(Method::POST, &page), "unsupported_media_type");
        assert_eq!(
            said(Method::POST, &["host: localhost", "content-type: text/plain", JSON]),
            "unsupported_media_type"
        );
    }

    #[test]
    fn a_read_that_does_more_is_for_programs_and_our_own_page() {
        for (line, expected) in [
            ("accept: */*", true),
            ("sec-fetch-site: none", true),
            ("sec-fetch-site: same-origin", true),
            ("origin: http://localhost", true),
            ("sec-fetch-site: same-site", false),
            ("sec-fetch-site: cross-site", false),
            ("origin: http://evil.example", false),
            ("host: evil.example", false),
        ] {
            let headers = headers(&["host: localhost", line]);
            assert_eq!(is_of_no_other_site(&Uri::from_static("/"), &headers), expected, "{line}");
        }
    }

    #[test]
    fn a_whole_address_in_the_request_line_counts_as_well() {
        for (uri, is_ours) in
            [("/json", true), ("http://localhost/json", true), ("http://evil.example/json", false)]
        {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
            assert_eq!(is_host_ours(&Uri::from_static(uri), &headers), is_ours, "{uri}");
        }
    }
}
