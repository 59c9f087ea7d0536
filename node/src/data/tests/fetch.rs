//! Fetches and stagings with real files and peers that misbehave, in virtual time: sources that break off, bytes with
//! another hash, a full cache, two that need the same.

use super::super::stage::{Ask, bring};
use super::super::{Data, InputsConfig};
use super::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ring::digest::{SHA256, digest};
use rota_consensus::{LinkError, PeerLink};
use rota_protocol::Token;
use rota_protocol::data::{BlobId, Input};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;
use tempfile::TempDir;

const JOB: JobId = JobId(5);

fn bytes_of(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed ^ (at >> 9) as u8).collect()
}

fn name_of(bytes: &[u8]) -> BlobId {
    BlobId(digest(&SHA256, bytes).as_ref().try_into().unwrap())
}

/// One of the other hosts.
#[derive(Default)]
struct Host {
    blobs: BTreeMap<BlobId, Vec<u8>>,
    /// It dies after so many pieces.
    dies_after: Option<usize>,
    pieces: usize,
    doubted: usize,
    /// It takes so long for each answer.
    slow: Duration,
}

/// All of them.
#[derive(Clone, Default)]
struct World(Arc<Mutex<BTreeMap<HostId, Host>>>);

impl World {
    fn on<T>(&self, host: u64, act: impl FnOnce(&mut Host) -> T) -> T {
        act(self.0.lock().unwrap().entry(HostId(host)).or_default())
    }

    fn give(&self, host: u64, blob: BlobId, bytes: &[u8]) {
        self.on(host, |host| host.blobs.insert(blob, bytes.to_vec()));
    }

    fn peers(&self) -> Peers {
        let world = self.clone();
        let all = move || {
            let hosts = world.0.lock().unwrap();
            let peer = |host: &HostId| super::super::sources::Peer {
                host: *host,
                name: format!("n{host}"),
                up: true,
            };
            hosts.keys().map(peer).collect()
        };
        Peers { link: Arc::new(self.clone()), all: Arc::new(all) }
    }

    fn answer(&self, to: HostId, ask: BlobAsk) -> Option<BlobNews> {
        self.on(to.0, |host| match ask {
            _ if host.dies_after == Some(0) => None,
            BlobAsk::Have { blob, .. } => Some(match host.blobs.get(&blob) {
                Some(bytes) => BlobNews::Here { bytes: bytes.len() as u64, public: false },
                None => BlobNews::Absent,
            }),
            BlobAsk::Read { blob, offset, bytes, .. } => {
                if let Some(left) = &mut host.dies_after {
                    *left -= 1;
                }
                host.pieces += 1;
                let all = host.blobs.get(&blob)?;
                let end = (offset as usize + bytes as usize).min(all.len());
                Some(BlobNews::Piece { bytes: all[offset as usize..end].to_vec() })
            }
            BlobAsk::Doubt { blob, .. } => {
                host.doubted += 1;
                host.blobs.remove(&blob);
                Some(BlobNews::Noted)
            }
            BlobAsk::Standing { .. } => None,
        })
    }
}

impl PeerLink for World {
    fn call(
        &self,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<PeerReply, LinkError>> {
        let world = self.clone();
        async move {
            let PeerRequest::Data(ask) = request else { return Err(LinkError::Timeout) };
            tokio::time::sleep(world.on(to.0, |host| host.slow)).await;
            match world.answer(to, ask) {
                Some(news) => Ok(PeerReply::Data(news)),
                None => {
                    tokio::time::sleep(ttl).await;
                    Err(LinkError::Timeout)
                }
            }
        }
        .boxed()
    }
}

struct Lab {
    dir: TempDir,
    data: Arc<Data>,
    world: World,
}

impl Lab {
    fn new(cache: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = InputsConfig { cache: Some(cache.into()), patience: Some("10s".into()) };
        let data = Data::open(dir.path(), &config, &BTreeSet::new());
        Self { dir, data, world: World::default() }
    }

    fn ask(&self, token: u64, tenant: &str, blobs: &[BlobId]) -> Ask {
        let input = |(at, blob): (usize, &BlobId)| Input { name: format!("in/{at}"), blob: *blob };
        Ask {
            token: Token(token),
            job: JOB,
            tenant: tenant.into(),
            inputs: blobs.iter().enumerate().map(input).collect(),
            view: self.data.draw_view(Token(token)),
            copies: false,
        }
    }

    async fn bring(&self, ask: &Ask) -> Result<(), Failure> {
        bring(&self.data, &self.world.peers(), ask.clone()).await
    }

    /// Every file under a blob's name has its hash.
    fn all_right(&self) {
        for folder in ["blobs"] {
            let Ok(entries) = fs::read_dir(self.dir.path().join("cache").join(folder)) else { return };
            for entry in entries {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                assert_eq!(name_of(&fs::read(&path).unwrap()).hex(), name);
            }
        }
    }

    /// Nobody holds anything, and nothing is on its way.
    async fn let_go(&self, tokens: &[u64]) {
        for token in tokens {
            self.data.over(Token(*token));
        }
        assert_eq!(self.data.users(), []);
        let left = |name: &str| fs::read_dir(self.dir.path().join(name)).map_or(0, Iterator::count);
        // What waited goes on as soon as a blob is there, the fetch itself ends a moment later; files go in the background.
        let all_left =
            || (lock(&self.data.flights).len(), left("inputs"), left("cache/held"), left("cache/partial"));
        for _ in 0..1_000 {
            if all_left() == (0, 0, 0, 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(all_left(), (0, 0, 0, 0));
        let shelf = lock(&self.data.shelf);
        let kept: u64 = shelf.blobs().map(|(_, kept)| kept.bytes).sum();
        assert_eq!(kept, shelf.bytes_used());
    }
}

fn read(view: &Path, at: usize) -> Vec<u8> {
    fs::read(view.join(format!("in/{at}"))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn two_attempts_share_one_fetch_and_see_the_same_file_read_only() {
    let lab = Lab::new("16MiB");
    let bytes = bytes_of(1, (2 << 20) + 7);
    let blob = name_of(&bytes);
    lab.world.give(2, blob, &bytes);
    let (one, two) = (lab.ask(1, "a", &[blob]), lab.ask(2, "a", &[blob]));
    let (first, second) = tokio::join!(lab.bring(&one), lab.bring(&two));
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(lab.world.on(2, |host| host.pieces), 5);
    assert!(read(&one.view, 0) == bytes && read(&two.view, 0) == bytes);
    let (a, b) = (one.view.join("in/0").metadata().unwrap(), two.view.join("in/0").metadata().unwrap());
    assert_eq!((a.ino(), a.mode() & 0o7777), (b.ino(), 0o444));
    assert_eq!(one.view.metadata().unwrap().permissions().mode() & 0o7777, 0o555);
    // One that may not share the file has one of its own.
    let three = Ask { copies: true, ..lab.ask(3, "a", &[blob]) };
    lab.bring(&three).await.unwrap();
    assert!(three.view.join("in/0").metadata().unwrap().ino() != a.ino() && read(&three.view, 0) == bytes);
    let counts = *lock(&lab.data.counts);
    assert_eq!((counts.hits, counts.misses, counts.fetched_bytes), (1, 2, bytes.len() as u64));
    lab.let_go(&[1, 2, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_dies_is_followed_by_the_next_which_goes_on() {
    let lab = Lab::new("16MiB");
    let bytes = bytes_of(2, 4 << 20);
    let blob = name_of(&bytes);
    lab.world.give(2, blob, &bytes);
    lab.world.on(2, |host| host.dies_after = Some(5));
    lab.world.give(3, blob, &bytes);
    lab.world.on(3, |host| host.slow = Duration::from_millis(50));
    let ask = lab.ask(1, "a", &[blob]);
    let began = Instant::now();
    assert_eq!(lab.bring(&ask).await, Ok(()));
    assert!(read(&ask.view, 0) == bytes);
    // Eight pieces in all: none that came was asked again.
    assert_eq!((lab.world.on(2, |host| host.pieces), lab.world.on(3, |host| host.pieces)), (5, 3));
    assert!(began.elapsed() < PIECE + Duration::from_secs(2), "{:?}", began.elapsed());
    lab.all_right();
    lab.let_go(&[1]).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_with_another_hash_are_never_shown_and_their_source_is_left_out() {
    let lab = Lab::new("16MiB");
    let bytes = bytes_of(3, 1 << 20);
    let blob = name_of(&bytes);
    let mut wrong = bytes.clone();
    wrong[700_000] ^= 1;
    lab.world.give(2, blob, &wrong);
    lab.world.give(3, blob, &bytes);
    lab.world.on(3, |host| host.slow = Duration::from_millis(50));
    let ask = lab.ask(1, "a", &[blob]);
    assert_eq!(lab.bring(&ask).await, Ok(()));
    assert!(read(&ask.view, 0) == bytes);
    assert_eq!((lab.world.on(2, |host| host.doubted), lock(&lab.data.counts).refused), (1, 1));
    lab.all_right();
    // Where only wrong ones are to be had it ends, and says so.
    let other = name_of(b"what was meant");
    lab.world.give(2, other, b"what is there");
    let asked = lab.ask(2, "a", &[other]);
    let failure = lab.bring(&asked).await.unwrap_err();
    assert!(!failure.nowhere && failure.reason.contains("the bytes of n2 had another hash"), "{failure:?}");
    assert!(!asked.view.exists());
    lab.all_right();
    lab.let_go(&[1, 2]).await;
}

#[tokio::test(start_paused = true)]
async fn several_sources_of_wrong_bytes_are_tried_one_by_one() {
    let lab = Lab::new("16MiB");
    let bytes = bytes_of(4, 2 << 20);
    let blob = name_of(&bytes);
    let mut wrong = bytes.clone();
    wrong[3] ^= 1;
    lab.world.give(2, blob, &wrong);
    lab.world.on(2, |host| host.dies_after = Some(2));
    lab.world.give(3, blob, &bytes);
    lab.world.on(3, |host| host.slow = Duration::from_millis(50));
    let ask = lab.ask(1, "a", &[blob]);
    assert_eq!(lab.bring(&ask).await, Ok(()));
    assert!(read(&ask.view, 0) == bytes);
    // Nobody was blamed for what two had given together.
    assert_eq!((lab.world.on(3, |host| host.doubted), lock(&lab.data.counts).refused), (0, 1));
    lab.let_go(&[1]).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_is_waited_for_and_then_told() {
    let lab = Lab::new("16MiB");
    let bytes = bytes_of(5, 9);
    let blob = name_of(&bytes);
    lab.world.on(2, |_| ());
    let (early, late) = (lab.ask(1, "a", &[blob]), lab.ask(2, "a", &[blob]));
    let began = Instant::now();
    let failure = lab.bring(&early).await.unwrap_err();
    assert!(failure.nowhere && failure.reason.contains("rota data add"), "{failure:?}");
    assert!((10..13).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    lab.data.over(Token(1));
    // One that comes in time.
    let adds = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let said = lab.data.standing(Token(2)).unwrap();
        assert!(said.contains("no host has"), "{said}");
        lab.world.give(2, blob, &bytes);
    };
    let (brought, ()) = tokio::join!(lab.bring(&late), adds);
    assert_eq!(brought, Ok(()));
    // Not all could be asked: then another host may do better.
    let third = lab.ask(3, "a", &[name_of(b"other")]);
    lab.world.on(2, |host| host.dies_after = Some(0));
    let failure = lab.bring(&third).await.unwrap_err();
    assert!(!failure.nowhere, "{failure:?}");
    lab.let_go(&[2, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_cache_is_waited_for_and_never_filled_in_part() {
    let lab = Lab::new("3MiB");
    let blobs: Vec<(BlobId, Vec<u8>)> =
        (10..13).map(|seed| bytes_of(seed, 2 << 20)).map(|bytes| (name_of(&bytes), bytes)).collect();
    for (blob, bytes) in &blobs {
        lab.world.give(2, *blob, bytes);
    }
    let (one, two, three) =
        (lab.ask(1, "a", &[blobs[0].0]), lab.ask(2, "a", &[blobs[1].0]), lab.ask(3, "a", &[blobs[2].0]));
    lab.bring(&one).await.unwrap();
    let failure = lab.bring(&two).await.unwrap_err();
    assert!(!failure.nowhere && failure.reason.contains("the cache is full"), "{failure:?}");
    assert!(!two.view.exists() && read(&one.view, 0) == blobs[0].1);
    lab.data.over(Token(2));
    let ends = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(lab.data.standing(Token(3)).unwrap().contains("the cache is full"));
        lab.data.over(Token(1));
    };
    let (brought, ()) = tokio::join!(lab.bring(&three), ends);
    assert_eq!(brought, Ok(()));
    lab.all_right();
    // What can never fit is not waited for.
    let huge = bytes_of(9, 4 << 20);
    lab.world.give(2, name_of(&huge), &huge);
    let began = Instant::now();
    let failure = lab.bring(&lab.ask(4, "a", &[name_of(&huge)])).await.unwrap_err();
    assert!(failure.reason.contains("more than this host's cache"), "{failure:?}");
    assert!(began.elapsed() < Duration::from_secs(1));
    lab.let_go(&[3, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_leaves_nothing_and_another_tenant_finds_nothing() {
    let lab = Lab::new("16MiB");
    let bytes = bytes_of(6, 1 << 20);
    let blob = name_of(&bytes);
    lab.world.give(2, blob, &bytes);
    lab.world.on(2, |host| host.slow = Duration::from_secs(3));
    let cancelled = lab.ask(1, "a", &[blob]);
    let gives_up = tokio::time::timeout(Duration::from_secs(4), lab.bring(&cancelled)).await;
    assert!(gives_up.is_err() && lab.data.users() == [Token(1)]);
    lab.let_go(&[1]).await;
    lab.world.on(2, |host| host.slow = Duration::ZERO);
    let before = lab.world.on(2, |host| host.pieces);
    for (token, tenant, pieces) in [(2, "a", 2), (3, "a", 2), (4, "b", 4)] {
        let ask = lab.ask(token, tenant, &[blob]);
        lab.bring(&ask).await.unwrap();
        assert_eq!(lab.world.on(2, |host| host.pieces) - before, pieces, "{tenant}");
    }
    // To peers it is there for those two alone.
    let absent = |tenant: &str| lab.data.have(&blob, tenant) == BlobNews::Absent;
    assert!(!absent("a") && !absent("b") && absent("c"));
    assert_eq!(lab.data.piece(blob, "c", 0, 9).await, Ok(BlobNews::Absent));
    lab.let_go(&[2, 3, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_what_living_attempts_hold_and_finds_altered_files() {
    let lab = Lab::new("4MiB");
    let (held, free) = (bytes_of(7, 1 << 20), bytes_of(8, 1 << 20));
    for bytes in [&held, &free] {
        lab.world.give(2, name_of(bytes), bytes);
    }
    let (one, two) = (lab.ask(1, "a", &[name_of(&held)]), lab.ask(2, "a", &[name_of(&free)]));
    lab.bring(&one).await.unwrap();
    lab.bring(&two).await.unwrap();
    let config = InputsConfig { cache: Some("4MiB".into()), patience: None };
    let again = Data::open(lab.dir.path(), &config, &BTreeSet::from([Token(1)]));
    assert!(read(&one.view, 0) == held && !two.view.exists());
    let holders = |bytes: &[u8]| lock(&again.shelf).kept(&name_of(bytes)).map(|kept| kept.holders.len());
    assert_eq!((holders(&held), holders(&free), again.users().len()), (Some(1), Some(0), 1));
    // Altered while nobody looked: put apart when it is needed, and fetched anew.
    let path = lab.dir.path().join("cache/blobs").join(name_of(&free).hex());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, b"altered").unwrap();
    let lab = Lab { data: again, ..lab };
    let three = lab.ask(3, "a", &[name_of(&free)]);
    lab.bring(&three).await.unwrap();
    assert!(read(&three.view, 0) == free);
    assert_eq!(lock(&lab.data.counts).refused, 1);
    lab.all_right();
    lab.let_go(&[1, 3]).await;
    // A lower limit holds at the next start.
    let config = InputsConfig { cache: Some("1MiB".into()), patience: None };
    let small = Data::open(lab.dir.path(), &config, &BTreeSet::new());
    assert_eq!(lock(&small.shelf).blobs().count(), 1);
}
