//! The token that callers of a port must carry, as `authorization: Bearer <token>`.

use std::hint::black_box;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use crate::config::settings::secret::Secret;

/// The digest of a token. Comparing digests takes the same time however much of a guess is right, and whatever its length.
#[derive(Debug)]
pub(crate) struct Token([u8; 32]);

impl Token {
    pub(crate) fn new(token: &Secret) -> Self {
        Self::of(token.expose())
    }

    fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether a call carries it.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(|given| self.is(&Self::of(given)))
    }

    fn is(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        black_box(pairs.fold(0, |different, (a, b)| different | black_box(a ^ b))) == 0
    }
}

/// The token that a call carries.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::new(&Secret::new("open sesame"));
        let admits = |value: &str| {
            let value = value.parse().expect("a header");
            token.is_in(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
        };
        assert!(admits("Bearer open sesame") && admits("bearer  open sesame "));
        for other in
            ["open sesame", "Basic open sesame", "Bearer", "Bearer ", "Bearer open", "Bearer open sesame!"]
        {
            assert!(!admits(other), "{other}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
    }
}
