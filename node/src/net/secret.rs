//! Tokens: texts that name the cluster's authority and carry a secret. Only their hashes are ever stored.
//!
//! `rota-join-<CA fingerprint, 64 hex digits>-<secret, 40 hex digits>`, and `rota-user-..` likewise. The prefix lets
//! secret scanners find them; the fingerprint lets the holder check the server before the secret leaves the host.

use super::ca::{self, CaError, Fingerprint};
use rota_protocol::command::SecretHash;
use std::fmt;

/// Bytes of randomness in a token: 160 bits.
const SECRET_BYTES: usize = 20;

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Admits one host, once.
    Join,
    /// Authenticates a user.
    User,
}

impl TokenKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Join => "rota-join-",
            Self::User => "rota-user-",
        }
    }
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join token",
            Self::User => "user token",
        })
    }
}

/// Why a text is not a token. The text itself is never repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Neither kind of token.
    #[error("this is not a token of rota: one begins with `rota-join-` or `rota-user-`")]
    NotAToken,
    /// The other kind.
    #[error("this is a {found}, but a {wanted} is needed")]
    WrongKind {
        /// What came.
        found: TokenKind,
        /// What is needed.
        wanted: TokenKind,
    },
    /// Cut short, or with strange letters.
    #[error("the token is damaged or cut short: copy the whole text, without spaces")]
    Damaged,
}

/// A token's text, checked in form only. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText {
    kind: TokenKind,
    ca: Fingerprint,
    text: String,
}

impl TokenText {
    /// Reads a token of the wanted kind; white space around it is dropped.
    ///
    /// # Errors
    /// Not a token, of the other kind, or damaged.
    pub fn parse(text: &str, wanted: TokenKind) -> Result<Self, TokenError> {
        let text = text.trim();
        let (found, rest) = [TokenKind::Join, TokenKind::User]
            .into_iter()
            .find_map(|kind| text.strip_prefix(kind.prefix()).map(|rest| (kind, rest)))
            .ok_or(TokenError::NotAToken)?;
        if found != wanted {
            return Err(TokenError::WrongKind { found, wanted });
        }
        let (print, secret) = rest.split_once('-').ok_or(TokenError::Damaged)?;
        let ca = Fingerprint::parse(print).ok_or(TokenError::Damaged)?;
        if secret.len() != 2 * SECRET_BYTES || !secret.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(TokenError::Damaged);
        }
        Ok(Self { kind: found, ca, text: text.to_owned() })
    }

    /// The authority that it names.
    #[must_use]
    pub fn ca(&self) -> Fingerprint {
        self.ca
    }

    /// The whole secret text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenText({} of {})", self.kind, self.ca)
    }
}

/// Makes a token for the cluster of this authority: its text, to be shown once, and the hash that the log keeps.
///
/// # Errors
/// The system gives no random numbers.
pub fn mint_secret(kind: TokenKind, ca: &Fingerprint) -> Result<(String, SecretHash), CaError> {
    let secret = ca::random::<SECRET_BYTES>()?;
    let text = format!("{}{ca}-{}", kind.prefix(), ca::hex(&secret));
    let hash = hash_secret(&text);
    Ok((text, hash))
}

/// SHA-256 over the whole text of a token. A plain hash is enough: the secret has 160 random bits.
#[must_use]
pub fn hash_secret(text: &str) -> SecretHash {
    ca::sha256(&[text.trim().as_bytes()])
}

/// Whether two hashes are equal, in a time that does not depend on where they differ.
#[must_use]
pub fn same_secret(a: &SecretHash, b: &SecretHash) -> bool {
    let differing = a.iter().zip(b).fold(0_u8, |sum, (x, y)| sum | std::hint::black_box(x ^ y));
    std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_authority_and_hides_its_secret() {
        let ca = Fingerprint([7; 32]);
        let (text, hash) = mint_secret(TokenKind::Join, &ca).unwrap();
        let token = TokenText::parse(&format!(" {text}\n"), TokenKind::Join).unwrap();
        assert_eq!(token.ca(), ca);
        assert_eq!(token.text(), text);
        assert_eq!(hash_secret(&text), hash);
        let secret = text.rsplit('-').next().unwrap();
        assert!(!format!("{token:?}").contains(secret));
        let (other, other_hash) = mint_secret(TokenKind::Join, &ca).unwrap();
        assert_ne!(text, other);
        assert!(same_secret(&hash, &hash) && !same_secret(&hash, &other_hash));
    }

    #[test]
    fn damaged_and_foreign_texts_are_named_without_being_repeated() {
        let (text, _) = mint_secret(TokenKind::User, &Fingerprint([7; 32])).unwrap();
        assert_eq!(
            TokenText::parse(&text, TokenKind::Join),
            Err(TokenError::WrongKind { found: TokenKind::User, wanted: TokenKind::Join })
        );
        for end in 0..text.len() {
            let error = TokenText::parse(&text[..end], TokenKind::User).unwrap_err();
            assert!(matches!(error, TokenError::NotAToken | TokenError::Damaged));
        }
        assert_eq!(TokenText::parse(&format!("{text}0"), TokenKind::User), Err(TokenError::Damaged));
        assert_eq!(TokenText::parse("hello", TokenKind::User), Err(TokenError::NotAToken));
    }
}
