//! A set of sequences, kept as 2048-bit nodes: the shape it has on disk, so that writing it is a copy.
//!
//! ```text
//! 22 | version | u32 nodes | u32 sequences | nodes x ( u64 base | buckets x u64 | u16 height )
//!      2: 32 buckets = 2048 sequences a node      1: 64 buckets = 4096
//! nodes in pre-order of a balanced tree; base is a multiple of the node's size; a leaf's height is 1
//! ```

use std::collections::BTreeMap;

use super::decode::{DecodeError, Reader};

const MAGIC: u8 = 22;
const VERSION: u8 = 2;
const BUCKETS: usize = 32;
const NODE: u64 = (BUCKETS as u64) * 64;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeqSet {
    nodes: BTreeMap<u64, Box<[u64; BUCKETS]>>,
    count: usize,
}

impl SeqSet {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn insert(&mut self, seq: u64) -> bool {
        let node = self.nodes.entry(seq / NODE * NODE).or_insert_with(|| Box::new([0; BUCKETS]));
        let (bucket, bit) = ((seq % NODE / 64) as usize, 1u64 << (seq % 64));
        let fresh = node[bucket] & bit == 0;
        node[bucket] |= bit;
        self.count += usize::from(fresh);
        fresh
    }

    pub fn insert_range(&mut self, range: std::ops::Range<u64>) {
        for seq in range {
            self.insert(seq);
        }
    }

    pub fn contains(&self, seq: u64) -> bool {
        let node = self.nodes.get(&(seq / NODE * NODE));
        node.is_some_and(|node| node[(seq % NODE / 64) as usize] & (1 << (seq % 64)) != 0)
    }

    pub fn remove(&mut self, seq: u64) -> bool {
        let base = seq / NODE * NODE;
        let Some(node) = self.nodes.get_mut(&base) else { return false };
        let (bucket, bit) = ((seq % NODE / 64) as usize, 1u64 << (seq % 64));
        let there = node[bucket] & bit != 0;
        node[bucket] &= !bit;
        if there {
            self.count -= 1;
            if node.iter().all(|b| *b == 0) {
                self.nodes.remove(&base);
            }
        }
        there
    }

    /// Forgets everything below `seq`.
    pub fn remove_below(&mut self, seq: u64) {
        if self.count == 0 {
            return; // front after front is taken from blocks without a hole
        }
        let base = seq / NODE * NODE;
        let rest = self.nodes.split_off(&base);
        let gone: u32 = self.nodes.values().flat_map(|n| n.iter()).map(|b| b.count_ones()).sum();
        self.count -= gone as usize;
        self.nodes = rest;
        let Some(node) = self.nodes.get_mut(&base) else { return };
        let (whole, below) = ((seq % NODE / 64) as usize, (1u64 << (seq % 64)) - 1);
        let kept = node.iter().map(|bucket| bucket.count_ones() as usize).sum::<usize>();
        node[..whole].fill(0);
        node[whole] &= !below;
        let left = node.iter().map(|bucket| bucket.count_ones() as usize).sum::<usize>();
        self.count -= kept - left;
        if left == 0 {
            self.nodes.remove(&base);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.nodes.iter().flat_map(|(base, node)| {
            node.iter().enumerate().flat_map(move |(index, bucket)| {
                let start = base + index as u64 * 64;
                (0..64).filter(move |bit| bucket & (1 << bit) != 0).map(move |bit| start + bit)
            })
        })
    }

    /// How many lie in `[from, to]`.
    pub fn count_between(&self, from: u64, to: u64) -> u64 {
        if from > to {
            return 0;
        }
        let mut count = 0;
        for (base, node) in self.nodes.range(from / NODE * NODE..=to) {
            if *base >= from && base + (NODE - 1) <= to {
                count += node.iter().map(|b| u64::from(b.count_ones())).sum::<u64>();
                continue;
            }
            for (index, bucket) in node.iter().enumerate() {
                let start = base + index as u64 * 64;
                for bit in (0..64).filter(|bit| bucket & (1 << bit) != 0) {
                    count += u64::from((from..=to).contains(&(start + bit)));
                }
            }
        }
        count
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[MAGIC, VERSION]);
        out.extend_from_slice(&(self.nodes.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.count as u32).to_le_bytes());
        let nodes: Vec<_> = self.nodes.iter().map(|(base, node)| (base, node.as_ref())).collect();
        encode_tree(&nodes, out);
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<SeqSet, DecodeError> {
        let magic = reader.byte()?;
        if magic != MAGIC {
            return reader.fail(format!("sequence set begins with {magic}, expected {MAGIC}"));
        }
        let buckets = match reader.byte()? {
            1 => 64usize,
            2 => 32,
            other => return reader.fail(format!("sequence set version {other}, known are 1 and 2")),
        };
        let (nodes, count) = (reader.u32()? as usize, reader.u32()? as usize);
        if nodes > reader.left() / (8 + buckets * 8 + 2) {
            return reader.fail(format!("{nodes} sequence-set nodes do not fit"));
        }
        let mut set = SeqSet::default();
        for _ in 0..nodes {
            let base = reader.u64()?;
            if base > super::record::SEQUENCE_MASK || base % NODE != 0 {
                return reader.fail(format!("sequence-set base {base} is not a multiple of {NODE}"));
            }
            for half in 0..buckets / BUCKETS {
                let mut node = Box::new([0u64; BUCKETS]);
                for bucket in node.iter_mut() {
                    *bucket = reader.u64()?;
                }
                let ones: u32 = node.iter().map(|b| b.count_ones()).sum();
                if ones > 0 && set.nodes.insert(base + half as u64 * NODE, node).is_some() {
                    return reader.fail(format!("sequence-set base {base} is there twice"));
                }
                set.count += ones as usize;
            }
            reader.u16()?;
        }
        if set.count != count {
            return reader.fail(format!("sequence set holds {} sequences, says {count}", set.count));
        }
        Ok(set)
    }
}

/// Pre-order of the balanced tree over sorted nodes; returns its height.
fn encode_tree(nodes: &[(&u64, &[u64; BUCKETS])], out: &mut Vec<u8>) -> u16 {
    if nodes.is_empty() {
        return 0;
    }
    let middle = nodes.len() / 2;
    let (base, buckets) = nodes[middle];
    out.extend_from_slice(&base.to_le_bytes());
    for bucket in buckets.iter() {
        out.extend_from_slice(&bucket.to_le_bytes());
    }
    let height_at = out.len();
    out.extend_from_slice(&[0; 2]);
    let left = encode_tree(&nodes[..middle], out);
    let right = encode_tree(&nodes[middle + 1..], out);
    let height = 1 + left.max(right);
    out[height_at..height_at + 2].copy_from_slice(&height.to_le_bytes());
    height
}

impl FromIterator<u64> for SeqSet {
    fn from_iter<I: IntoIterator<Item = u64>>(seqs: I) -> Self {
        let mut set = SeqSet::default();
        for seq in seqs {
            set.insert(seq);
        }
        set
    }
}
