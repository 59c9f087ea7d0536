//! The warden's hands: what it takes to know who is on this host's cards and to give them back clean. Decisions are in
//! `logic` (`reclaim`, `strangers`, `vram`, `idle`); the pump is `actors::warden`.
//!
//! - [`settings`]: the `[sharing]` table of the configuration;
//! - [`whose`]: which attempt a process belongs to;
//! - [`openers`]: who has a card's device node open;
//! - [`scrub`]: the site's command that cleans a card between two users;
//! - [`look`]: what one look saw, with every process attributed;
//! - [`mps`]: the daemons through which jobs share a card;
//! - [`mig`]: declared slices, made again when they are gone;
//! - [`sides`]: the log's side of it;
//! - [`series`]: what is measured of jobs on cards.

pub mod look;
pub mod mig;
pub mod mps;
pub mod openers;
pub mod scrub;
pub mod series;
pub mod settings;
pub mod sides;
pub mod whose;
