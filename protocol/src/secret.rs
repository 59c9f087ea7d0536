//! Texts that must not be seen: tokens and private keys. On a wire and in JSON they are plain texts; whatever is
//! printed for debugging shows that there is one, and no more.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ApiReply, ApiRequest};
    use crate::peer::{JoinGrant, JoinReply, JoinRequest};
    use crate::{ClusterId, HostId};

    #[test]
    fn no_message_shows_its_secret_when_it_is_printed() {
        let secret = || Secret("canary".into());
        let join = JoinRequest {
            token: secret(),
            host_name: "h".into(),
            addr: "a:1".into(),
            public_key_der: Vec::new(),
        };
        let grant = JoinGrant {
            cluster: ClusterId(1),
            cluster_name: "c".into(),
            host: HostId(1),
            certificate_pem: "public".into(),
            ca_pem: "public".into(),
            ca_key_pem: secret(),
            peers: Vec::new(),
        };
        let printed = format!(
            "{join:?} {:?} {:?} {:?}",
            JoinReply::Granted(Box::new(grant)),
            ApiRequest::Authenticate { token: secret() },
            ApiReply::Token { secret: secret() },
        );
        assert!(printed.contains("Secret(..)") && !printed.contains("canary"), "{printed}");
    }

    #[test]
    fn a_secret_travels_as_the_text_that_it_is() {
        let bytes = crate::codec::encode(&Secret("text".into())).expect("encodes");
        assert_eq!(bytes, crate::codec::encode(&"text".to_owned()).expect("encodes"));
    }
}
