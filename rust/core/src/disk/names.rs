//! The names of the memory disk: which directories hold what, now and durably.
//!
//! Every change of a name is applied at once to the names of now and waits in `pending` until its
//! directory is synced. A rename is one change that touches two directories: after a power cut a
//! file has its old name or its new one (or, when other changes were lost, both), never neither.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::OpenMode;
use super::memory::Bytes;

#[derive(Clone)]
pub(super) enum Node {
    File(Arc<Mutex<Bytes>>),
    Directory(Arc<Directory>),
}

impl Node {
    /// Two names of one file are the same node; equal bytes are not.
    pub fn is(&self, other: &Node) -> bool {
        self.address() == other.address()
    }

    pub fn address(&self) -> usize {
        match self {
            Node::File(file) => Arc::as_ptr(file) as usize,
            Node::Directory(directory) => Arc::as_ptr(directory) as usize,
        }
    }
}

pub(super) type Entries = BTreeMap<String, Node>;

#[derive(Default)]
pub(super) struct Directory {
    now: Mutex<Entries>,
    durable: Mutex<Entries>,
}

impl Directory {
    pub fn synced(entries: Entries) -> Self {
        Directory { now: Mutex::new(entries.clone()), durable: Mutex::new(entries) }
    }

    pub fn now(&self) -> MutexGuard<'_, Entries> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn durable(&self) -> MutexGuard<'_, Entries> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in a directory.
#[derive(Clone)]
pub(super) struct EntryName {
    pub directory: Arc<Directory>,
    pub name: String,
}

/// `node` leaves `from` and appears at `to`: a removal has no `to`, a creation no `from`.
#[derive(Clone)]
pub(super) struct Change {
    pub node: Node,
    pub from: Option<EntryName>,
    pub to: Option<EntryName>,
}

impl Change {
    pub fn directories(&self) -> impl Iterator<Item = &Arc<Directory>> {
        self.from.iter().chain(&self.to).map(|place| &place.directory)
    }
}

pub(super) struct Names {
    pub root: Arc<Directory>,
    pub pending: Vec<Change>,
}

/// `/a//b/./c` and `a/b/c` are the same place; `..` goes up and stops at the root.
pub(super) fn components(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.to_owned()),
        }
    }
    parts
}

fn error<T>(kind: io::ErrorKind) -> io::Result<T> {
    Err(kind.into())
}

impl Names {
    pub fn new(root: Arc<Directory>) -> Self {
        Names { root, pending: Vec::new() }
    }

    fn walk(&self, parts: &[String]) -> io::Result<Node> {
        let mut node = Node::Directory(self.root.clone());
        for part in parts {
            let Node::Directory(directory) = &node else {
                return error(io::ErrorKind::NotADirectory);
            };
            let next = directory.now().get(part).cloned();
            node = next.ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    pub fn node(&self, path: &str) -> io::Result<Node> {
        self.walk(&components(path))
    }

    pub fn file(&self, path: &str) -> io::Result<Arc<Mutex<Bytes>>> {
        match self.node(path)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => error(io::ErrorKind::IsADirectory),
        }
    }

    pub fn directory(&self, path: &str) -> io::Result<Arc<Directory>> {
        self.directory_at(&components(path))
    }

    fn directory_at(&self, parts: &[String]) -> io::Result<Arc<Directory>> {
        match self.walk(parts)? {
            Node::Directory(directory) => Ok(directory),
            Node::File(_) => error(io::ErrorKind::NotADirectory),
        }
    }

    /// The directory that must exist, and the name in it that may.
    fn place(&self, path: &str) -> io::Result<EntryName> {
        let mut parts = components(path);
        // The root has no name, so it cannot be made, renamed or removed.
        let name = parts.pop().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(EntryName { directory: self.directory_at(&parts)?, name })
    }

    fn change(&mut self, change: Change) {
        if let Some(from) = &change.from {
            from.directory.now().remove(&from.name);
        }
        if let Some(to) = &change.to {
            to.directory.now().insert(to.name.clone(), change.node.clone());
        }
        self.pending.push(change);
    }

    pub fn open(&mut self, path: &str, mode: OpenMode) -> io::Result<Arc<Mutex<Bytes>>> {
        let place = self.place(path)?;
        let there = place.directory.now().get(&place.name).cloned();
        match (there, mode) {
            (Some(_), OpenMode::CreateNew) => error(io::ErrorKind::AlreadyExists),
            (Some(Node::File(file)), _) => Ok(file),
            (Some(Node::Directory(_)), _) => error(io::ErrorKind::IsADirectory),
            (None, OpenMode::Read) => error(io::ErrorKind::NotFound),
            (None, _) => {
                let file = Arc::new(Mutex::default());
                self.change(Change { node: Node::File(file.clone()), from: None, to: Some(place) });
                Ok(file)
            }
        }
    }

    pub fn create_dir_all(&mut self, path: &str) -> io::Result<Vec<String>> {
        let parts = components(path);
        let prefix = if path.starts_with('/') { "/" } else { "" };
        let mut made = Vec::new();
        let mut directory = self.root.clone();
        for (depth, name) in parts.iter().enumerate() {
            let there = directory.now().get(name).cloned();
            directory = match there {
                Some(Node::Directory(next)) => next,
                Some(Node::File(_)) => return error(io::ErrorKind::NotADirectory),
                None => {
                    let next = Arc::new(Directory::default());
                    let to = Some(EntryName { directory, name: name.clone() });
                    self.change(Change { node: Node::Directory(next.clone()), from: None, to });
                    made.push(format!("{prefix}{}", parts[..=depth].join("/")));
                    next
                }
            };
        }
        Ok(made)
    }

    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (from_parts, to_parts) = (components(from), components(to));
        let node = self.walk(&from_parts)?;
        if from_parts == to_parts {
            return Ok(());
        }
        if to_parts.starts_with(&from_parts) {
            return error(io::ErrorKind::InvalidInput);
        }
        let (from, to) = (self.place(from)?, self.place(to)?);
        let replaced = to.directory.now().get(&to.name).cloned();
        match (&node, replaced) {
            (Node::File(_), Some(Node::Directory(_))) => return error(io::ErrorKind::IsADirectory),
            (Node::Directory(_), Some(Node::File(_))) => return error(io::ErrorKind::NotADirectory),
            (Node::Directory(_), Some(Node::Directory(old))) if !old.now().is_empty() => {
                return error(io::ErrorKind::DirectoryNotEmpty);
            }
            _ => {}
        }
        self.change(Change { node, from: Some(from), to: Some(to) });
        Ok(())
    }

    pub fn remove_file(&mut self, path: &str) -> io::Result<()> {
        let node = Node::File(self.file(path)?);
        let from = Some(self.place(path)?);
        self.change(Change { node, from, to: None });
        Ok(())
    }

    pub fn remove_dir_all(&mut self, path: &str) -> io::Result<()> {
        let directory = self.directory(path)?;
        let place = self.place(path)?;
        self.remove_below(&directory);
        self.change(Change { node: Node::Directory(directory), from: Some(place), to: None });
        Ok(())
    }

    fn remove_below(&mut self, directory: &Arc<Directory>) {
        let entries: Vec<_> = directory.now().iter().map(|(name, node)| (name.clone(), node.clone())).collect();
        for (name, node) in entries {
            if let Node::Directory(inner) = &node {
                self.remove_below(inner);
            }
            let from = Some(EntryName { directory: directory.clone(), name });
            self.change(Change { node, from, to: None });
        }
    }

    pub fn sync_dir(&mut self, path: &str) -> io::Result<()> {
        let mut reached = vec![self.directory(path)?];
        let within = |reached: &[Arc<Directory>], d: &Arc<Directory>| reached.iter().any(|r| Arc::ptr_eq(r, d));
        // Backwards: a rename that is made durable takes along what came before it in its other directory.
        let mut synced = vec![false; self.pending.len()];
        for (change, synced) in self.pending.iter().zip(&mut synced).rev() {
            *synced = change.directories().any(|d| within(&reached, d));
            if *synced {
                let new: Vec<_> = change.directories().filter(|d| !within(&reached, d)).cloned().collect();
                reached.extend(new);
            }
        }
        let mut later = Vec::new();
        for (change, synced) in std::mem::take(&mut self.pending).into_iter().zip(synced) {
            if !synced {
                later.push(change);
                continue;
            }
            if let Some(from) = &change.from {
                from.directory.durable().remove(&from.name);
            }
            if let Some(to) = &change.to {
                to.directory.durable().insert(to.name.clone(), change.node);
            }
        }
        self.pending = later;
        Ok(())
    }
}
