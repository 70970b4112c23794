//! The three disks: the same contract on all, then what each adds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use headrace_core::disk::{
    Disk, Fault, FaultErrno, FaultPlan, FaultyDisk, Keep, MemoryDisk, OpenMode, RealDisk, copy_tree, flip_bit, parent,
    replace_file,
};
use proptest::prelude::*;

/// A directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("headrace-disk-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, below: &str) -> String {
        format!("{}/{below}", self.0.display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[allow(clippy::cognitive_complexity)] // one list of what holds
fn contract(disk: &dyn Disk, base: &str) {
    let at = |below: &str| format!("{base}/{below}");
    assert_eq!(disk.create_dir_all(&at("s/msgs")).unwrap(), [at("s"), at("s/msgs")]);
    assert_eq!(disk.create_dir_all(&at("s/msgs")).unwrap(), Vec::<String>::new());

    let file = disk.open(&at("s/msgs/1.blk"), OpenMode::CreateNew).unwrap();
    assert!(file.is_empty().unwrap());
    file.write_at(0, b"hello").unwrap();
    file.write_at(7, b"world").unwrap();
    assert_eq!(file.read_at(0, 1 << 40).unwrap(), b"hello\0\0world");
    assert_eq!(file.read_at(10, 5).unwrap(), b"ld");
    assert_eq!(file.read_at(100, 5).unwrap(), b"");
    file.set_len(6).unwrap();
    file.set_len(8).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.read(&at("s/msgs/1.blk"), 8).unwrap(), b"hello\0\0\0");
    let refused = disk.read(&at("s/msgs/1.blk"), 7).unwrap_err();
    assert_eq!(refused.source.kind(), std::io::ErrorKind::InvalidData);
    assert!(refused.to_string().contains("8 bytes") && refused.to_string().contains('7'), "{refused}");

    let kind = |result: Result<_, headrace_core::disk::DiskError>| result.err().unwrap().source.kind();
    assert_eq!(kind(disk.open(&at("s/msgs/1.blk"), OpenMode::CreateNew)), std::io::ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.open(&at("s/none"), OpenMode::Read)), std::io::ErrorKind::NotFound);
    assert_eq!(kind(disk.open(&at("none/x"), OpenMode::Write)), std::io::ErrorKind::NotFound);
    let reader = disk.open(&at("s/msgs/1.blk"), OpenMode::Read).unwrap();
    assert!(reader.write_at(0, b"x").is_err());

    replace_file(disk, &at("s/meta.inf"), b"{}").unwrap();
    replace_file(disk, &at("s/meta.inf"), b"{1}").unwrap();
    let names: Vec<_> = disk.list(&at("s")).unwrap().into_iter().map(|e| (e.name, e.is_dir)).collect();
    assert_eq!(names, [("meta.inf".to_owned(), false), ("msgs".to_owned(), true)]);
    assert_eq!(disk.entry(&at("s/meta.inf")).unwrap().unwrap().len, 3);
    assert_eq!(disk.entry(&at("s/meta.inf")).unwrap().unwrap().name, "meta.inf");
    assert_eq!(disk.entry(&at("s/gone")).unwrap(), None);
    assert_eq!(disk.entry(&at("s/meta.inf/below")).unwrap(), None);

    disk.rename(&at("s/msgs"), &at("s/old")).unwrap();
    assert!(disk.rename(&at("s/msgs"), &at("s/older")).is_err());
    file.write_at(0, b"J").unwrap();
    assert_eq!(disk.read(&at("s/old/1.blk"), 99).unwrap()[0], b'J');
    flip_bit(disk, &at("s/old/1.blk"), 0, 1).unwrap();
    assert_eq!(disk.read(&at("s/old/1.blk"), 99).unwrap()[0], b'J' ^ 2);
    assert!(flip_bit(disk, &at("s/old/1.blk"), 8, 1).is_err());

    let lock = disk.lock(&at("s/LOCK"), "writer\nof s").unwrap().ok().unwrap();
    let holder = disk.lock(&at("s/LOCK"), "other").unwrap().err().unwrap();
    assert_eq!((holder.pid, holder.note.as_str()), (std::process::id(), "writer of s"));
    drop(lock);
    drop(disk.lock(&at("s/LOCK"), "other").unwrap().ok().unwrap());
    assert!(disk.entry(&at("s/LOCK")).unwrap().is_some());

    disk.remove_file(&at("s/old/1.blk")).unwrap();
    assert!(disk.remove_file(&at("s/old/1.blk")).is_err());
    assert!(file.read_at(0, 1).unwrap() == [b'J' ^ 2], "an open file outlives its name");
    disk.remove_dir_all(&at("s")).unwrap();
    disk.sync_dir(base).unwrap();
    assert_eq!(disk.list(base).unwrap(), []);
}

#[test]
fn all_disks_keep_the_contract() {
    let scratch = Scratch::new("contract");
    contract(&RealDisk::default(), &scratch.0.display().to_string());
    for base in ["/data", "data"] {
        let memory = MemoryDisk::new();
        memory.create_dir_all(base).unwrap();
        contract(&memory, base);
        contract(&FaultyDisk::new(Arc::new(memory), FaultPlan::default()), base);
    }
}

#[test]
fn real_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("modes");
    RealDisk::default().create_dir_all(&scratch.path("d/e")).unwrap();
    RealDisk::default().open(&scratch.path("d/f"), OpenMode::Write).unwrap();
    let mode = |below: &str| std::fs::metadata(scratch.path(below)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("d"), mode("d/e"), mode("d/f")), (0o700, 0o700, 0o600));
}

#[test]
fn parents() {
    let pairs = [("a/b/c", "a/b"), ("a", "."), ("/a", "/"), ("a/b/", "a"), ("/a/b", "/a")];
    for (path, directory) in pairs {
        assert_eq!(parent(path), directory, "{path}");
    }
}

#[test]
fn a_tree_is_copied_both_ways() {
    let scratch = Scratch::new("copy");
    std::fs::create_dir_all(scratch.path("in/a/b")).unwrap();
    std::fs::write(scratch.path("in/a/one"), vec![7u8; 3_000_000]).unwrap();
    std::fs::write(scratch.path("in/a/b/two"), b"").unwrap();
    let memory = MemoryDisk::new();
    copy_tree(&RealDisk::default(), &scratch.path("in"), &memory, "/store/x").unwrap();
    let durable = memory.crash(0, Keep::None);
    assert_eq!(durable.read("/store/x/a/one", 1 << 30).unwrap(), vec![7u8; 3_000_000]);
    copy_tree(&durable, "/store/x", &RealDisk::default(), &scratch.path("out")).unwrap();
    assert_eq!(std::fs::read(scratch.path("out/a/one")).unwrap().len(), 3_000_000);
    assert!(std::fs::read(scratch.path("out/a/b/two")).unwrap().is_empty());
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_nothing_else() {
    let disk = MemoryDisk::new();
    disk.create_dir_all("d").unwrap();
    disk.sync_dir("/").unwrap();
    let file = disk.open("d/f", OpenMode::Write).unwrap();
    file.write_at(0, b"durable").unwrap();
    file.sync_data().unwrap();
    assert!(disk.crash(1, Keep::None).entry("d/f").unwrap().is_none(), "its name was not synced");
    assert!(disk.crash(1, Keep::All).entry("d/f").unwrap().is_some());
    disk.sync_dir("d").unwrap();
    file.write_at(0, b"DURA").unwrap();
    file.write_at(7, b" and more").unwrap();
    assert_eq!(disk.crash(1, Keep::None).read("d/f", 99).unwrap(), b"durable");
    assert_eq!(disk.crash(1, Keep::All).read("d/f", 99).unwrap(), b"DURAble and more");
    disk.rename("d/f", "d/g").unwrap();
    assert!(disk.crash(1, Keep::None).entry("d/g").unwrap().is_none());
    disk.sync_dir("d").unwrap();
    disk.remove_file("d/g").unwrap();
    assert_eq!(disk.crash(1, Keep::None).read("d/g", 99).unwrap(), b"durable", "the removal was not synced");
    disk.sync_dir("d").unwrap();
    assert_eq!(disk.crash(1, Keep::None).list("d").unwrap(), []);
    assert_eq!(disk.sync_points(), 5);
}

#[test]
fn a_rename_into_another_directory_never_loses_the_file() {
    for synced in ["a", "b"] {
        let disk = MemoryDisk::new();
        for directory in ["a", "b"] {
            disk.create_dir_all(directory).unwrap();
        }
        disk.sync_dir("/").unwrap();
        disk.open("b/f", OpenMode::Write).unwrap();
        replace_file(&disk, "a/f", b"kept").unwrap();
        disk.rename("a/f", "b/f").unwrap();
        disk.sync_dir(synced).unwrap();
        disk.sync_dir("b").unwrap();
        let after = disk.crash(0, Keep::None);
        assert_eq!(after.read("b/f", 9).unwrap(), b"kept");
        assert!(after.entry("a/f").unwrap().is_none());
    }
}

#[test]
fn the_power_goes_off_at_the_chosen_sync() {
    let disk = MemoryDisk::new();
    let file = disk.open("f", OpenMode::Write).unwrap();
    disk.sync_dir("/").unwrap();
    disk.power_cut_at(2);
    for round in 0u8..3 {
        file.write_at(u64::from(round), &[b'a' + round]).unwrap();
        if round < 1 {
            file.sync_data().unwrap();
        } else {
            let error = file.sync_data().unwrap_err();
            assert!(error.to_string().contains("power is off"), "{error}");
            break;
        }
    }
    assert!(file.write_at(0, b"z").is_err() && file.read_at(0, 1).is_err() && disk.list("/").is_err());
    assert!(disk.open("f", OpenMode::Read).is_err() && disk.sync_dir("/").is_err());
    assert_eq!(disk.sync_points(), 2);
    assert_eq!(disk.crash(0, Keep::None).read("f", 9).unwrap(), b"a");
    assert_eq!(disk.crash(0, Keep::All).read("f", 9).unwrap(), b"ab");
}

#[test]
fn a_random_crash_tears_by_pages_and_repeats_by_seed() {
    let disk = MemoryDisk::new();
    let file = disk.open("f", OpenMode::Write).unwrap();
    disk.sync_dir("/").unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    file.sync_data().unwrap();
    file.write_at(1000, &[2; 6000]).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let bytes = disk.crash(seed, Keep::Random).read("f", 1 << 20).unwrap();
        assert_eq!(bytes, disk.crash(seed, Keep::Random).read("f", 1 << 20).unwrap());
        assert!((4096..=7000).contains(&bytes.len()));
        assert!(bytes[..1000].iter().all(|byte| *byte == 1), "synced bytes beside a torn write stay");
        for page in bytes[1024..].chunks(512) {
            assert!(page.iter().all(|byte| *byte == page[0]) || bytes.len() % 512 != 0 || page.len() < 512);
        }
        seen.insert(bytes);
    }
    assert!(seen.len() > 100, "only {} different crashes", seen.len());
}

#[test]
fn a_flipped_bit_survives_the_crash_and_is_no_sync() {
    let disk = MemoryDisk::new();
    replace_file(&disk, "f", &[0; 600]).unwrap();
    let points = disk.sync_points();
    disk.open("f", OpenMode::Write).unwrap().write_at(599, b"x").unwrap();
    disk.flip_bit("f", 550, 3).unwrap();
    assert_eq!(disk.sync_points(), points);
    for keep in [Keep::None, Keep::All, Keep::Random] {
        assert_eq!(disk.crash(5, keep).read("f", 999).unwrap()[550], 8);
    }
}

#[derive(Debug, Clone)]
enum Act {
    Write(u16, Vec<u8>),
    SetLen(u16),
    Sync,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0u16..3000, proptest::collection::vec(any::<u8>(), 0..1500)).prop_map(|(at, data)| Act::Write(at, data)),
        1 => (0u16..4000).prop_map(Act::SetLen),
        2 => Just(Act::Sync),
    ];
    proptest::collection::vec(act, 0..40)
}

proptest! {
    /// Against the plain model: a copy of the bytes at each sync.
    #[test]
    fn durable_bytes_are_those_of_the_last_sync(acts in acts(), seed: u64) {
        let disk = MemoryDisk::new();
        let file = disk.open("f", OpenMode::Write).unwrap();
        disk.sync_dir("/").unwrap();
        let (mut now, mut durable) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                Act::Write(at, data) => {
                    file.write_at(at.into(), &data).unwrap();
                    let at = at as usize;
                    if !data.is_empty() {
                        now.resize(now.len().max(at + data.len()), 0);
                        now[at..at + data.len()].copy_from_slice(&data);
                    }
                }
                Act::SetLen(len) => {
                    file.set_len(len.into()).unwrap();
                    now.resize(len.into(), 0);
                }
                Act::Sync => {
                    file.sync_data().unwrap();
                    durable.clone_from(&now);
                }
            }
            prop_assert_eq!(&disk.read("f", 1 << 20).unwrap(), &now);
            prop_assert_eq!(&disk.crash(seed, Keep::None).read("f", 1 << 20).unwrap(), &durable);
            prop_assert_eq!(&disk.crash(seed, Keep::All).read("f", 1 << 20).unwrap(), &now);
            let torn = disk.crash(seed, Keep::Random).read("f", 1 << 20).unwrap();
            for (at, byte) in torn.iter().enumerate() {
                let old = durable.get(at).copied().unwrap_or(0);
                let new = now.get(at).copied().unwrap_or(0);
                prop_assert!(*byte == old || *byte == new);
            }
        }
    }

    /// Names: whatever was synced is there after any crash, whatever was never written is not.
    #[test]
    fn random_renames_crash_into_a_sound_tree(moves in proptest::collection::vec((0u8..6, 0u8..6, 0u8..5), 1..60), seed: u64) {
        let disk = MemoryDisk::new();
        let name = |n: u8| format!("{}/{}", ["x", "y"][usize::from(n % 2)], n / 2);
        disk.create_dir_all("x").unwrap();
        disk.create_dir_all("y").unwrap();
        disk.sync_dir("/").unwrap();
        for (from, to, what) in moves {
            match what {
                0 => drop(disk.open(&name(from), OpenMode::Write).unwrap()),
                1 | 2 => drop(disk.rename(&name(from), &name(to))),
                3 => drop(disk.remove_file(&name(from))),
                _ => disk.sync_dir(["x", "y"][usize::from(to % 2)]).unwrap(),
            }
        }
        let after = disk.crash(seed, Keep::Random);
        for directory in ["x", "y"] {
            for entry in after.list(directory).unwrap() {
                let path = format!("{directory}/{}", entry.name);
                prop_assert!(after.open(&path, OpenMode::Read).is_ok());
            }
            disk.sync_dir(directory).unwrap();
        }
        let crashed = disk.crash(seed, Keep::Random);
        for directory in ["x", "y"] {
            prop_assert_eq!(crashed.list(directory).unwrap(), disk.list(directory).unwrap());
        }
    }
}

#[test]
fn many_synced_appends_are_cheap() {
    let disk = MemoryDisk::new();
    let file = disk.open("f", OpenMode::Write).unwrap();
    let started = std::time::Instant::now();
    for round in 0..100_000u64 {
        file.write_at(round * 300, &[round as u8; 300]).unwrap();
        file.sync_data().unwrap();
    }
    assert!(started.elapsed().as_secs() < 5, "30 MB in 100,000 synced appends took {:?}", started.elapsed());
}

#[test]
fn a_planned_fault_strikes_once_or_stays() {
    let memory = MemoryDisk::new();
    let plan = FaultPlan::new(Fault {
        fail_write_at: Some(2),
        short_write_bytes: 3,
        path_contains: ".blk".into(),
        ..Fault::default()
    });
    let disk = FaultyDisk::new(Arc::new(memory), plan.clone());
    disk.open("other", OpenMode::Write).unwrap().write_at(0, b"uncounted").unwrap();
    let file = disk.open("1.blk", OpenMode::Write).unwrap();
    file.write_at(0, b"first").unwrap();
    let error = file.write_at(5, b"second").unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(disk.read("1.blk", 99).unwrap(), b"firstsec");
    file.write_at(5, b"second").unwrap();
    assert_eq!((plan.writes(), plan.syncs()), (4, 0));

    plan.clear();
    plan.update(|fault| {
        fault.fail_sync_at = Some(1);
        fault.sync_error = FaultErrno::Io;
        fault.sticky = true;
    });
    file.sync_data().unwrap();
    for _ in 0..3 {
        assert_eq!(file.sync_data().unwrap_err().source.raw_os_error(), Some(5));
    }
    disk.sync_dir("/").unwrap();
    plan.clear();
    file.sync_data().unwrap();
}

#[test]
fn a_full_disk_refuses_growth_and_allows_removal() {
    let plan = FaultPlan::default();
    let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()), plan.clone());
    let file = disk.open("f", OpenMode::Write).unwrap();
    file.write_at(0, b"12345").unwrap();
    plan.update(|fault| (fault.fail_write_at, fault.sticky) = (Some(0), true));
    assert!(file.set_len(9).is_err() && file.write_at(5, b"6").is_err() && disk.open("g", OpenMode::Write).is_err());
    file.set_len(2).unwrap();
    disk.remove_file("f").unwrap();
    for errno in ["ENOSPC", "EDQUOT", "EIO", "EROFS"] {
        assert_eq!(FaultErrno::from_name(errno).unwrap().name(), errno);
    }
}

/// What works on one file only knows that file, and no directory around it.
#[test]
fn a_root_may_be_a_file() {
    let scratch = Scratch::new("file-root");
    let file = scratch.path("1.blk");
    std::fs::write(&file, b"record").unwrap();
    let disk = RealDisk::below(&file);
    assert_eq!(disk.read(&file, 100).unwrap(), b"record");
    assert_eq!(disk.open(&file, OpenMode::Read).unwrap().read_at(0, 6).unwrap(), b"record");
    assert!(!disk.entry(&file).unwrap().unwrap().is_dir);
}
