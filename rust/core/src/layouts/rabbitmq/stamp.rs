//! One number for everything that RabbitMQ could have changed in a vhost: names, lengths, times and inodes of all files.

use crate::disk::{Disk, DiskResult};
use crate::hash::HashKey;

const DEPTH_MAX: usize = 8;
const OURS: &str = "headrace.";

/// Of all files under `path`; files of ours do not count, but for the one called `but`.
pub fn of_tree(disk: &dyn Disk, path: &str, but: &str) -> DiskResult<u64> {
    let mut seen = Vec::new();
    walk(disk, path, "", but, 0, &mut seen)?;
    Ok(HashKey::new(&[0; 32]).hash(&seen))
}

fn walk(disk: &dyn Disk, root: &str, under: &str, but: &str, depth: usize, seen: &mut Vec<u8>) -> DiskResult<()> {
    for entry in disk.list(&format!("{root}{under}"))? {
        if depth > DEPTH_MAX || (entry.name.starts_with(OURS) && entry.name != but) {
            continue;
        }
        let at = format!("{under}/{}", entry.name);
        seen.extend_from_slice(&(at.len() as u64).to_be_bytes());
        seen.extend_from_slice(at.as_bytes());
        if entry.is_dir {
            walk(disk, root, &at, but, depth + 1, seen)?;
        } else {
            seen.extend_from_slice(&entry.len.to_be_bytes());
            seen.extend_from_slice(&disk.stamp(&format!("{root}{at}"))?.to_be_bytes());
        }
    }
    Ok(())
}
