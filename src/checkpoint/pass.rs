//! One pass over the bytes of a checkpoint: each is read once, by one of several readers, which hashes it and
//! hands it on.
//!
//! A reader walks its file in pieces. A piece is read into memory of whoever takes it, handed on from there and
//! hashed meanwhile, so the bytes that are hashed are the bytes that are used. Bytes that are in memory
//! already go the same way, without a hash. The largest sources come first: they are what a pass waits for.

use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use sha2::{Digest, Sha256};

use super::Progress;
use crate::digest::Sha256Digest;

/// Most readers of a pass. Hashing keeps a core busy for each.
const READERS_MAX: usize = 8;

/// Bytes that a pass reads from the first to the last.
pub(crate) struct Source<'a> {
    /// Base name of a file.
    name: &'a str,
    bytes: u64,
    place: Place<'a>,
    hashed: bool,
}

enum Place<'a> {
    File(&'a File),
    Memory(&'a [u8]),
}

impl<'a> Source<'a> {
    /// The first `bytes` bytes of an open file, to be hashed. `name` is told while it is read.
    pub(super) fn file(name: &'a str, file: &'a File, bytes: u64) -> Self {
        Self { name, bytes, place: Place::File(file), hashed: true }
    }

    /// Bytes that are there already, to be hashed.
    pub(super) fn embedded(name: &'a str, bytes: &'a [u8]) -> Self {
        Self { name, hashed: true, ..Self::memory(bytes) }
    }

    /// Bytes that are there already, and whose hash nobody asks for.
    pub(crate) fn memory(bytes: &'a [u8]) -> Self {
        Self { name: "", bytes: bytes.len() as u64, place: Place::Memory(bytes), hashed: false }
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads bytes `at ..`; they lie inside.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self.place {
            Place::File(file) => file.read_exact_at(into, at),
            Place::Memory(bytes) => {
                let start = usize::try_from(at).expect("memory is addressed");
                into.copy_from_slice(&bytes[start..start + into.len()]);
                Ok(())
            }
        }
    }
}

/// What one reader does with what it reads, besides hashing it.
pub(crate) trait Lane {
    /// Why bytes could not be handed on. It ends the pass.
    type Error: Send;

    /// Memory for the next piece, at least a byte of it. Nobody reads what was in it any more.
    fn room(&mut self) -> Result<&mut [u8], Self::Error>;

    /// Begins to hand on the `len` bytes that the last [`room`](Self::room) was filled with: those at `at` of
    /// source number `source`. Answers them, to be hashed meanwhile.
    fn hand_on(&mut self, source: usize, at: u64, len: usize) -> Result<&[u8], Self::Error>;

    /// Waits until everything has been handed on.
    fn finish(&mut self) -> Result<(), Self::Error>;
}

/// What became of a source: its digest if one was asked for, or why it could not be read to its end.
pub(crate) type Outcome = io::Result<Option<Sha256Digest>>;

/// Readers that a pass over so many sources has: one a source and a core, and no more than eight.
pub(crate) fn readers(sources: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    sources.min(cores).clamp(1, READERS_MAX)
}

/// Reads every source to its end, on this thread and `readers - 1` others with a lane each, and answers what
/// became of it. `progress` is told of the sources that are hashed. When this returns or panics, no reader is
/// left.
///
/// # Errors
/// The first error of a lane. A source that cannot be read is an [`Outcome`], and the others are read still.
pub(crate) fn run<L: Lane>(
    sources: &[Source<'_>],
    readers: usize,
    progress: &dyn Progress,
    lane: &(dyn Fn() -> Result<L, L::Error> + Sync),
) -> Result<Vec<Outcome>, L::Error> {
    let hashed = || sources.iter().filter(|source| source.hashed);
    progress.start(hashed().count(), hashed().map(Source::bytes).sum());
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|&index| Reverse(sources[index].bytes));
    let queue = Queue {
        sources,
        order,
        next: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        progress,
    };
    let finished = thread::scope(|scope| {
        let spawn = |_| {
            let named = thread::Builder::new().name("reader".into());
            // A thread that cannot be had is a reader less.
            named.spawn_scoped(scope, || queue.work(lane)).ok()
        };
        let others: Vec<_> = (1..readers).filter_map(spawn).collect();
        let own = queue.work(lane);
        let others = others.into_iter().map(|other| match other.join() {
            Ok(done) => done,
            Err(fault) => std::panic::resume_unwind(fault),
        });
        std::iter::once(own).chain(others).collect::<Result<Vec<_>, _>>()
    })?;
    let mut outcomes: Vec<_> = sources.iter().map(|_| None).collect();
    for (index, outcome) in finished.into_iter().flatten() {
        outcomes[index] = Some(outcome);
    }
    // Readers that all came to their end leave nothing in the queue.
    Ok(outcomes.into_iter().map(|outcome| outcome.expect("every source was read")).collect())
}

/// Sources that readers take from.
struct Queue<'a> {
    sources: &'a [Source<'a>],
    /// Indices of the sources, the largest first.
    order: Vec<usize>,
    /// How many of them are taken.
    next: AtomicUsize,
    /// Whether a reader has failed, so that the others need not go on.
    stopped: AtomicBool,
    progress: &'a dyn Progress,
}

/// Stops the others unless its reader comes to a good end; a panic is none.
struct StopOthers<'a>(Option<&'a AtomicBool>);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        if let Some(stopped) = self.0 {
            stopped.store(true, Ordering::Relaxed);
        }
    }
}

impl Queue<'_> {
    /// One reader: takes sources until none is left.
    fn work<L: Lane>(
        &self,
        lane: &(dyn Fn() -> Result<L, L::Error> + Sync),
    ) -> Result<Vec<(usize, Outcome)>, L::Error> {
        let mut stop = StopOthers(Some(&self.stopped));
        let mut lane = lane()?;
        let mut outcomes = Vec::new();
        while let Some(&index) = self.order.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            outcomes.push((index, self.read(index, &mut lane)?));
        }
        lane.finish()?;
        stop.0 = None;
        Ok(outcomes)
    }

    fn read<L: Lane>(&self, index: usize, lane: &mut L) -> Result<Outcome, L::Error> {
        let source = &self.sources[index];
        let mut hasher = source.hashed.then(Sha256::new);
        if source.hashed {
            self.progress.file(source.name);
        }
        let mut at = 0;
        // What is left unread once a reader has failed does not matter: the pass has failed.
        while at < source.bytes && !self.stopped.load(Ordering::Relaxed) {
            let room = lane.room()?;
            let len = usize::try_from(source.bytes - at).map_or(room.len(), |n| n.min(room.len()));
            if let Err(error) = source.read(at, &mut room[..len]) {
                return Ok(Err(error));
            }
            let piece = lane.hand_on(index, at, len)?;
            if let Some(hasher) = &mut hasher {
                hasher.update(piece);
                self.progress.advance(len as u64);
            }
            at += len as u64;
        }
        Ok(Ok(hasher.map(|hasher| Sha256Digest(hasher.finalize().into()))))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// What arrived: source, offset, bytes.
    type Arrived = Vec<(usize, u64, Vec<u8>)>;

    /// Keeps what it is given, and may fail or panic at its n-th piece.
    struct Keeper<'a> {
        room: Vec<u8>,
        arrived: &'a Mutex<Arrived>,
        left: &'a AtomicUsize,
        trouble: Option<(usize, bool)>,
        pieces: usize,
    }

    impl Lane for Keeper<'_> {
        type Error = &'static str;

        fn room(&mut self) -> Result<&mut [u8], Self::Error> {
            // Bytes of the last piece must not show in the next.
            self.room.fill(0xEE);
            Ok(&mut self.room)
        }

        fn hand_on(&mut self, source: usize, at: u64, len: usize) -> Result<&[u8], Self::Error> {
            self.pieces += 1;
            match self.trouble {
                Some((piece, true)) if piece == self.pieces => panic!("at a piece"),
                Some((piece, false)) if piece == self.pieces => return Err("no"),
                _ => {}
            }
            self.arrived.lock().unwrap().push((source, at, self.room[..len].to_vec()));
            Ok(&self.room[..len])
        }

        fn finish(&mut self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    impl Drop for Keeper<'_> {
        fn drop(&mut self) {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    struct Count {
        total: AtomicU64,
        hashed: AtomicU64,
    }

    impl Progress for Count {
        fn start(&self, files: usize, bytes: u64) {
            assert_eq!(files, 3);
            self.total.store(bytes, Ordering::Relaxed);
        }
        fn file(&self, name: &str) {
            assert!(name.starts_with("file"), "{name}");
        }
        fn advance(&self, bytes: u64) {
            self.hashed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn content(len: usize, salt: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + salt * 7 + i / 251) as u8).collect()
    }

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    /// A pass over these sources with rooms of `chunk` bytes.
    fn pass(
        sources: &[Source<'_>],
        (readers, chunk): (usize, usize),
        trouble: Option<(usize, bool)>,
        progress: &dyn Progress,
    ) -> (Result<Vec<Outcome>, &'static str>, Arrived) {
        let (arrived, left) = (Mutex::<Arrived>::default(), AtomicUsize::new(0));
        let lane = || {
            let (arrived, left) = (&arrived, &left);
            Ok(Keeper { room: vec![0; chunk], arrived, left, trouble, pieces: 0 })
        };
        let done = catch_unwind(AssertUnwindSafe(|| run(sources, readers, progress, &lane)));
        assert_eq!(left.into_inner(), readers, "every reader has left");
        (done.unwrap_or(Err("panic")), arrived.into_inner().unwrap())
    }

    #[test]
    fn every_byte_is_read_once_and_hashed_at_any_size_of_a_piece() {
        let contents = [content(1000, 1), content(0, 2), content(64, 3), content(333, 4)];
        let files = [file(&contents[0]), file(&contents[1])];
        let sources = [
            Source::file("file a", &files[0], 1000),
            Source::file("file b", &files[1], 0),
            Source::embedded("file c", &contents[2]),
            Source::memory(&contents[3]),
        ];
        for (readers, chunk) in [(1, 1), (1, 4096), (2, 64), (3, 7), (5, 999)] {
            let progress = Count::default();
            let (done, mut arrived) = pass(&sources, (readers, chunk), None, &progress);
            arrived.sort();
            for (index, content) in contents.iter().enumerate() {
                let pieces = arrived.iter().filter(|(source, ..)| *source == index);
                let mut end = 0;
                for (_, at, piece) in pieces {
                    assert_eq!(*at, end as u64, "no byte twice and none left out");
                    assert_eq!(piece, &content[end..end + piece.len()]);
                    end += piece.len();
                }
                assert_eq!(end, content.len());
                let digest = done.as_ref().unwrap()[index].as_ref().unwrap();
                let expected = (index < 3).then(|| Sha256Digest::of(content));
                assert_eq!(*digest, expected, "source {index}, pieces of {chunk}");
            }
            assert_eq!((progress.total.into_inner(), progress.hashed.into_inner()), (1064, 1064));
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_outcome_and_the_others_are_read() {
        let contents = [content(100, 1), content(200, 2)];
        let files = [file(&contents[0]), file(&contents[1])];
        files[1].set_len(150).unwrap();
        let sources = [Source::file("a", &files[0], 100), Source::file("b", &files[1], 200)];
        let (done, _) = pass(&sources, (2, 16), None, &());
        let done = done.unwrap();
        assert_eq!(*done[0].as_ref().unwrap(), Some(Sha256Digest::of(&contents[0])));
        assert_eq!(done[1].as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_error_or_a_panic_of_a_lane_ends_the_pass_and_leaves_no_reader() {
        let content = content(1 << 16, 1);
        let sources: Vec<_> = (0..20).map(|_| Source::memory(&content)).collect();
        for (panics, expected) in [(false, "no"), (true, "panic")] {
            let (done, arrived) = pass(&sources, (3, 16), Some((50, panics)), &());
            assert_eq!(done.unwrap_err(), expected);
            let pieces = 20 * content.len() / 16;
            assert!(arrived.len() < pieces / 2, "{} of {pieces}", arrived.len());
        }
    }
}
