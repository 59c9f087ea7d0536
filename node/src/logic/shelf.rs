//! What a host keeps of blobs: for whom, who uses them, what goes when room is needed, and who waits for what is not
//! there yet. Sans-io: files and fetches follow what is decided here.
//!
//! - A blob is on the shelf only after its bytes were found right and lie under its name (I16).
//! - It is there for the tenants that are written beside it, or for all; to others it is absent, and is fetched for them
//!   as if it were not there.
//! - Those who need the same blob for the same tenant wait for one fetch.
//! - What an attempt holds or somebody pinned never goes; of the rest, what was not used for longest goes first.

use rota_protocol::Token;
use rota_protocol::data::BlobId;
use std::collections::{BTreeMap, BTreeSet};

/// A blob that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// Its length.
    pub bytes: u64,
    /// Who may use it, and whether that tenant pinned it.
    pub owners: BTreeMap<String, bool>,
    /// Everybody may.
    pub public: bool,
    /// What it was called when it was added.
    pub name: String,
    /// When it was last taken into use, ms since the epoch.
    pub used_ms: u64,
    /// Attempts that use it.
    pub holders: BTreeSet<Token>,
}

impl Kept {
    /// Whether this tenant's jobs may use it.
    #[must_use]
    pub fn is_for(&self, tenant: &str) -> bool {
        self.public || self.owners.contains_key(tenant)
    }

    /// Somebody wants it to stay.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.owners.values().any(|pinned| *pinned)
    }

    /// It is for those of another one, too, and pinned for whoever pinned that.
    pub fn share_with(&mut self, other: &Self) {
        for (tenant, pinned) in &other.owners {
            *self.owners.entry(tenant.clone()).or_default() |= pinned;
        }
        self.public |= other.public;
    }

    fn may_go(&self) -> bool {
        self.holders.is_empty() && !self.is_pinned()
    }
}

/// What is fetched once, whoever needs it: for one tenant nothing is taken from another.
pub type Wanted = (BlobId, String);

/// What becomes of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// It is there, and held.
    Here,
    /// It is not, and whoever asked is to fetch it.
    Fetch,
    /// It is being fetched.
    UnderWay,
}

/// There is not enough room, and nothing that could go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// What could be had.
    pub bytes_free: u64,
    /// It would not fit an empty cache.
    pub never: bool,
}

/// The shelf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shelf {
    bytes_max: u64,
    /// Of blobs.
    bytes_kept: u64,
    /// Of what is on its way.
    bytes_claimed: u64,
    blobs: BTreeMap<BlobId, Kept>,
    /// Who waits for what is being fetched; nobody for what is fetched ahead.
    fetches: BTreeMap<Wanted, BTreeSet<Token>>,
    /// Attempts that hold or wait for something, and what.
    tokens: BTreeMap<Token, BTreeSet<Wanted>>,
}

impl Shelf {
    /// An empty one.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Most bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes in use, those on their way included.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        self.bytes_kept.saturating_add(self.bytes_claimed)
    }

    /// What is kept.
    pub fn blobs(&self) -> impl Iterator<Item = (&BlobId, &Kept)> {
        self.blobs.iter()
    }

    /// One that is kept, whoever it is for.
    #[must_use]
    pub fn kept(&self, blob: &BlobId) -> Option<&Kept> {
        self.blobs.get(blob)
    }

    /// One that is kept, as far as this tenant is concerned.
    #[must_use]
    pub fn kept_for(&self, blob: &BlobId, tenant: &str) -> Option<&Kept> {
        self.blobs.get(blob).filter(|kept| kept.is_for(tenant))
    }

    /// An attempt needs a blob. Asking again changes nothing.
    pub fn want(&mut self, token: Token, wanted: &Wanted, now_ms: u64) -> Want {
        self.tokens.entry(token).or_default().insert(wanted.clone());
        let (blob, tenant) = wanted;
        if let Some(kept) = self.blobs.get_mut(blob).filter(|kept| kept.is_for(tenant)) {
            if kept.holders.insert(token) {
                kept.used_ms = now_ms;
            }
            return Want::Here;
        }
        match self.fetches.get_mut(wanted) {
            Some(waiting) => {
                waiting.insert(token);
                Want::UnderWay
            }
            None => {
                self.fetches.insert(wanted.clone(), BTreeSet::from([token]));
                Want::Fetch
            }
        }
    }

    /// Something is to be there before an attempt needs it. Whether a fetch is to begin.
    pub fn want_ahead(&mut self, wanted: &Wanted) -> bool {
        if self.kept_for(&wanted.0, &wanted.1).is_some() || self.fetches.contains_key(wanted) {
            return false;
        }
        self.fetches.insert(wanted.clone(), BTreeSet::new());
        true
    }

    /// An attempt that lived when the agent started holds a blob.
    pub fn adopt(&mut self, token: Token, wanted: &Wanted) {
        if let Some(kept) = self.blobs.get_mut(&wanted.0) {
            kept.holders.insert(token);
            self.tokens.entry(token).or_default().insert(wanted.clone());
        }
    }

    /// Whether an attempt holds or waits for anything.
    #[must_use]
    pub fn knows(&self, token: Token) -> bool {
        self.tokens.contains_key(&token)
    }

    /// Attempts that hold or wait for something.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = Token> {
        self.tokens.keys().copied()
    }

    /// An attempt is over, or does not want to start any more. Gives fetches that nobody waits for now, and blobs that
    /// nobody owns and nobody holds.
    pub fn let_go(&mut self, token: Token) -> (Vec<Wanted>, Vec<BlobId>) {
        let (mut idle, mut gone) = (Vec::new(), Vec::new());
        for wanted in self.tokens.remove(&token).unwrap_or_default() {
            if let Some(waiting) = self.fetches.get_mut(&wanted)
                && waiting.remove(&token)
                && waiting.is_empty()
            {
                idle.push(wanted.clone());
            }
            let Some(kept) = self.blobs.get_mut(&wanted.0) else { continue };
            kept.holders.remove(&token);
            if kept.holders.is_empty() && kept.owners.is_empty() && !kept.public {
                gone.push(wanted.0);
            }
        }
        for blob in &gone {
            self.take(blob);
        }
        (idle, gone)
    }

    /// Makes room for so many bytes that are on their way: gives what has to go.
    ///
    /// # Errors
    /// What could go is not enough; nothing was changed.
    pub fn claim(&mut self, bytes: u64) -> Result<Vec<BlobId>, NoRoom> {
        let free = self.bytes_max.saturating_sub(self.bytes_used());
        let (goes, freed) = self.oldest(bytes.saturating_sub(free));
        let bytes_free = free.saturating_add(freed);
        if bytes_free < bytes {
            return Err(NoRoom { bytes_free, never: bytes > self.bytes_max });
        }
        for blob in &goes {
            self.take(blob);
        }
        self.bytes_claimed = self.bytes_claimed.saturating_add(bytes);
        Ok(goes)
    }

    /// What was claimed is not on its way any more.
    pub fn unclaim(&mut self, bytes: u64) {
        self.bytes_claimed = self.bytes_claimed.saturating_sub(bytes);
    }

    /// A fetch is over, well or not: nobody waits for it any more. Gives who did.
    pub fn fetch_over(&mut self, wanted: &Wanted) -> BTreeSet<Token> {
        self.fetches.remove(wanted).unwrap_or_default()
    }

    /// Makes what is kept fit the limit, as far as it may go: gives what has to.
    pub fn shed(&mut self) -> Vec<BlobId> {
        let over = self.bytes_used().saturating_sub(self.bytes_max);
        let (goes, _) = self.oldest(over);
        for blob in &goes {
            self.take(blob);
        }
        goes
    }

    /// What has to go for so many bytes, what was not used for longest first, and what that gives; less if there is no more.
    fn oldest(&self, bytes: u64) -> (Vec<BlobId>, u64) {
        let mut old: Vec<_> = self.blobs.iter().filter(|(_, kept)| kept.may_go()).collect();
        old.sort_by_key(|(blob, kept)| (kept.used_ms, **blob));
        let (mut goes, mut freed) = (Vec::new(), 0_u64);
        for (blob, kept) in old {
            if freed >= bytes {
                break;
            }
            freed = freed.saturating_add(kept.bytes);
            goes.push(*blob);
        }
        (goes, freed)
    }

    /// Whether an attempt waits for a fetch.
    #[must_use]
    pub fn waits(&self, token: Token, wanted: &Wanted) -> bool {
        self.fetches.get(wanted).is_some_and(|waiting| waiting.contains(&token))
    }

    /// Whether a fetch is still to go on.
    #[must_use]
    pub fn is_fetched(&self, wanted: &Wanted) -> bool {
        self.fetches.contains_key(wanted)
    }

    /// A blob whose bytes are right lies under its name. What is known of it already stays; whoever waited for it holds it.
    pub fn put(&mut self, blob: BlobId, new: Kept) {
        let tenants: Vec<String> = new.owners.keys().cloned().collect();
        match self.blobs.get_mut(&blob) {
            Some(kept) => {
                kept.share_with(&new);
                kept.used_ms = kept.used_ms.max(new.used_ms);
                if kept.name.is_empty() {
                    kept.name = new.name;
                }
            }
            None => {
                self.bytes_kept = self.bytes_kept.saturating_add(new.bytes);
                self.blobs.insert(blob, new);
            }
        }
        for tenant in tenants {
            let waiting = self.fetch_over(&(blob, tenant));
            if let Some(kept) = self.blobs.get_mut(&blob) {
                kept.holders.extend(waiting);
            }
        }
    }

    /// A tenant, or everybody, needs it no more. Whether its bytes are to go now; none if it was not there for that
    /// tenant.
    pub fn disown(&mut self, blob: &BlobId, tenant: Option<&str>) -> Option<bool> {
        let kept = self.blobs.get_mut(blob)?;
        match tenant {
            Some(tenant) => {
                let pinned = kept.owners.remove(tenant)?;
                // Who made it public may take that back.
                kept.public &= !(pinned && kept.public);
            }
            None => (kept.owners, kept.public) = (BTreeMap::new(), false),
        }
        let gone = kept.owners.is_empty() && !kept.public && kept.holders.is_empty();
        if gone {
            self.take(blob);
        }
        Some(gone)
    }

    /// Its bytes are not what they were: it is not there any more, whoever holds it.
    pub fn damaged(&mut self, blob: &BlobId) -> bool {
        self.take(blob)
    }

    fn take(&mut self, blob: &BlobId) -> bool {
        let taken = self.blobs.remove(blob);
        self.bytes_kept = self.bytes_kept.saturating_sub(taken.as_ref().map_or(0, |kept| kept.bytes));
        taken.is_some()
    }
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
