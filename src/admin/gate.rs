//! Who may use the admin port: with a token set, those who have it; without one, all but other sites' web pages.
//!
//! Health checks and the files of the page are open to all, and so are calls that only read, if the settings say so. In the place
//! of envoyproxy/ratelimit, whose port has no token, everything is open but what changes limits or the retry policy.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::browser;
use super::error::ApiError;
use super::page;
use crate::config::settings::secret::Secret;
use crate::listen::token::Token;

/// What orchestrators ask, who have no token.
const OPEN: [&str; 3] = ["/livez", "/readyz", "/healthcheck"];

/// Lets calls through, or not.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// Absent: everybody may.
    token: Option<Arc<Token>>,
    open_reads: bool,
    is_in_place: bool,
}

/// What can be changed. In the place of envoyproxy/ratelimit, where everybody can reach the port, that always needs a token.
const WRITTEN: [&str; 2] = ["/v1/limits", "/v1/retry-policy"];

impl Gate {
    pub(crate) fn new(token: Option<&Secret>, open_reads: bool) -> Self {
        Self { token: token.map(|token| Arc::new(Token::new(token))), open_reads, is_in_place: false }
    }

    /// In the place of envoyproxy/ratelimit.
    pub(crate) fn in_place(token: Option<&Secret>) -> Self {
        Self { is_in_place: true, ..Self::new(token, true) }
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    /// What a call may do, or why nothing.
    fn admit(&self, request: &Request) -> Result<Access, ApiError> {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let reads = matches!(*method, Method::GET | Method::HEAD);
        if self.is_in_place {
            return self.admit_in_place(request, reads);
        }
        let Some(token) = &self.token else {
            return match browser::refusal(method, uri, headers) {
                Some(error) => Err(error),
                None if browser::is_of_no_other_site(uri, headers) => Ok(Access::Full),
                None => Ok(Access::Look),
            };
        };
        if token.is_in(headers) {
            return Ok(Access::Full);
        }
        let path = uri.path();
        if OPEN.contains(&path) || (reads && (self.open_reads || page::FILES.contains(&path))) {
            return Ok(Access::Look);
        }
        if let Some(error) = browser::foreign(method, uri, headers) {
            return Err(error);
        }
        Err(unauthorized("this call needs the admin token, as `authorization: Bearer <token>`"))
    }

    fn admit_in_place(&self, request: &Request, reads: bool) -> Result<Access, ApiError> {
        if self.token.as_ref().is_some_and(|token| token.is_in(request.headers())) {
            return Ok(Access::Full);
        }
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let path = uri.path();
        if !reads && WRITTEN.iter().any(|written| path.starts_with(written)) {
            return Err(unauthorized(match self.token {
                Some(_) => "what changes limits needs the admin token, as `authorization: Bearer <token>`",
                None => "what changes limits needs an admin token: set SLUICE_ADMIN_TOKEN, and send it",
            }));
        }
        // That program answers by whatever name it is called, and whatever content type the call has. A page of another site is
        // known by its `origin`, which programs don't send.
        if !headers.contains_key(header::ORIGIN) {
            return Ok(Access::Look);
        }
        match browser::refusal(method, uri, headers) {
            Some(error) => Err(error),
            None => Ok(Access::Look),
        }
    }
}

fn unauthorized(detail: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

/// What a call may do. Routes find it with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// All that the port can do.
    Full,
    /// See what changes nothing and gives nothing away: no lease token, and no lease is picked up by looking at it.
    Look,
}

/// In front of every route, also of those that don't exist.
pub(crate) async fn check(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let error = match gate.admit(&request) {
        Ok(access) => {
            request.extensions_mut().insert(access);
            return next.run(request).await;
        }
        Err(error) => error,
    };
    let mut response = error.into_response();
    if response.status() == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer realm=\"sluice\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}
