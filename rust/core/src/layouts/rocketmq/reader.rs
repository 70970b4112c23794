//! Messages of one queue by its entries: neighbours in the log are read together.

use std::io::Read;
use std::sync::Arc;

use super::message::{self, FLAG_COMPRESSED, Parsed, View};
use super::scan::ENTRY;
use crate::batch::{Batch, Entry, HeaderCodec, Span};
use crate::disk::{Disk, DiskFile, DiskResult, OpenMode};

/// Bytes of other queues that are rather read along than skipped.
const GAP_BYTES: u64 = 64 << 10;
const RUN_BYTES: u64 = 8 << 20;

pub struct CommitLogReader {
    /// By the address of their first byte.
    files: Vec<(u64, Arc<dyn DiskFile>)>,
}

#[derive(Debug, Clone)]
pub struct Finding {
    pub queue_offset: i64,
    pub address: u64,
    pub size: u64,
    pub why: String,
}

impl CommitLogReader {
    pub fn new(disk: &Arc<dyn Disk>, files: &[(u64, String)]) -> DiskResult<CommitLogReader> {
        let open = |(start, path): &(u64, String)| Ok((*start, disk.open(path, OpenMode::Read)?));
        Ok(CommitLogReader { files: files.iter().map(open).collect::<DiskResult<_>>()? })
    }

    fn file_at(&self, address: u64) -> Option<&(u64, Arc<dyn DiskFile>)> {
        self.files[..self.files.partition_point(|(start, _)| *start <= address)].last()
    }

    fn file_end(&self, address: u64) -> u64 {
        let after = self.files.partition_point(|(start, _)| *start <= address);
        self.files.get(after).map_or(u64::MAX, |(start, _)| *start)
    }

    /// The messages that entries of a queue (from offset `first` on) point to, until `bytes_max` were read; how many
    /// entries that were; and what is not there as it should be.
    pub fn read(
        &self,
        topic: &[u8],
        queue: i32,
        first: i64,
        entries: &[u8],
        bytes_max: usize,
        inflated_max: usize,
    ) -> DiskResult<(Batch, usize, Vec<Finding>)> {
        let wanted: Vec<(u64, u64)> = entries.chunks_exact(ENTRY).map(place).collect();
        let (mut buffer, mut found, mut findings) = (Vec::new(), Vec::with_capacity(wanted.len()), Vec::new());
        let mut at = 0;
        while at < wanted.len() && (at == 0 || buffer.len() < bytes_max) {
            let end = at + run_of(&wanted[at..], self.file_end(wanted[at].0), bytes_max as u64);
            let (start, stop) = (wanted[at].0, wanted[at..end].iter().map(end_of).max().unwrap_or(0));
            let base = buffer.len();
            if let Some((file_start, file)) = self.file_at(start) {
                let bytes = file.read_at(start - file_start, (stop - start) as usize)?;
                // Mostly one run is all: then nothing is copied.
                if buffer.is_empty() {
                    buffer = bytes;
                } else {
                    buffer.extend_from_slice(&bytes);
                }
            }
            let read = buffer.len() - base;
            for (index, (address, size)) in wanted[at..end].iter().enumerate() {
                let offset = first.wrapping_add((at + index) as i64);
                let from = (address - start) as usize;
                let piece = from..(from + *size as usize).min(read).max(from.min(read));
                let bytes = &buffer[base + piece.start.min(read)..base + piece.end];
                match check(bytes, *address, topic, queue, offset) {
                    Ok(view) => {
                        let made = entry(&mut buffer, base + from, &view, inflated_max);
                        match made {
                            Ok(made) => found.push(made),
                            Err(why) => {
                                findings.push(Finding { queue_offset: offset, address: *address, size: *size, why })
                            }
                        }
                    }
                    Err(why) => {
                        let why = why.to_owned();
                        findings.push(Finding { queue_offset: offset, address: *address, size: *size, why });
                    }
                }
            }
            at = end;
        }
        Ok((Batch::new(Arc::new(buffer), found, HeaderCodec::RocketMq), at, findings))
    }

    /// The store time of the message at an address; None when there is no sound one.
    pub fn store_time(&self, address: u64, size: usize) -> DiskResult<Option<i64>> {
        let Some((start, file)) = self.file_at(address) else { return Ok(None) };
        let bytes = file.read_at(address - start, size.min(message::MESSAGE_BYTES_MAX))?;
        Ok(match message::parse(&bytes, address) {
            Ok(Parsed::Message(view)) if view.check(&bytes).is_ok() => Some(view.store_ms),
            _ => None,
        })
    }

    /// (topic, queue, queue offset) of the message at an address.
    pub fn identify(&self, address: u64) -> DiskResult<Option<(Vec<u8>, i32, i64)>> {
        let Some((start, file)) = self.file_at(address) else { return Ok(None) };
        let size = message::extent(&file.read_at(address - start, 8)?).map_or(0, |(size, _)| size);
        let bytes = file.read_at(address - start, size.min(message::MESSAGE_BYTES_MAX))?;
        Ok(match message::parse(&bytes, address) {
            Ok(Parsed::Message(view)) if view.check(&bytes).is_ok() => {
                Some((bytes[view.topic.clone()].to_vec(), view.queue, view.queue_offset))
            }
            _ => None,
        })
    }
}

fn place(entry: &[u8]) -> (u64, u64) {
    let address = u64::from_be_bytes(entry[..8].try_into().expect("eight"));
    (address, u64::from(u32::from_be_bytes(entry[8..12].try_into().expect("four"))).min(1 << 31))
}

/// How many entries lie so close together that one read serves them.
fn run_of(wanted: &[(u64, u64)], file_end: u64, bytes_max: u64) -> usize {
    let start = wanted[0].0;
    let most = RUN_BYTES.min(bytes_max);
    let mut end = end_of(&wanted[0]);
    for (count, place) in wanted.iter().enumerate().skip(1) {
        let apart = place.0 < end || place.0 - end > GAP_BYTES || place.0 >= file_end;
        if apart || end_of(place) - start > most {
            return count;
        }
        end = end_of(place);
    }
    wanted.len()
}

/// One above the last byte. Entries come from a file: the address may be anything.
fn end_of(place: &(u64, u64)) -> u64 {
    place.0.saturating_add(place.1)
}

fn check(bytes: &[u8], address: u64, topic: &[u8], queue: i32, offset: i64) -> Result<View, &'static str> {
    let Parsed::Message(view) = message::parse(bytes, address)? else { return Err("no message is there") };
    view.check(bytes)?;
    if &bytes[view.topic.clone()] != topic || view.queue != queue || view.queue_offset != offset {
        return Err("a message of another queue or offset is there");
    }
    Ok(view)
}

fn entry(buffer: &mut Vec<u8>, at: usize, view: &View, inflated_max: usize) -> Result<Entry, String> {
    let span = |range: &std::ops::Range<usize>| Span { offset: (at + range.start) as u32, len: range.len() as u32 };
    let bytes = &buffer[at..at + view.size];
    let key = view.property(bytes, b"KEYS").map_or(Span::NULL, |key| Span {
        // The value lies inside the buffer: its address there is its offset.
        offset: (key.as_ptr() as usize - buffer.as_ptr() as usize) as u32,
        len: key.len() as u32,
    });
    let headers = if view.properties.is_empty() { Span::NULL } else { span(&view.properties) };
    let (subject, mut data) = (span(&view.topic), span(&view.body));
    if view.sys_flag & FLAG_COMPRESSED != 0 {
        let plain = inflate(&bytes[view.body.clone()], view.sys_flag, inflated_max)?;
        data = Span { offset: buffer.len() as u32, len: plain.len() as u32 };
        buffer.extend_from_slice(&plain);
    }
    let time = view.store_ms.saturating_mul(1_000_000);
    Ok(Entry { position: view.queue_offset as u64, time, subject, key, headers, data, flags: 0 })
}

fn inflate(body: &[u8], sys_flag: i32, max: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let limit = max as u64 + 1;
    let done = match (sys_flag >> 8) & 7 {
        1 => lz4_flex::frame::FrameDecoder::new(body).take(limit).read_to_end(&mut out),
        2 => zstd::stream::read::Decoder::with_buffer(body).and_then(|d| d.take(limit).read_to_end(&mut out)),
        _ => flate2::read::ZlibDecoder::new(body).take(limit).read_to_end(&mut out),
    };
    done.map_err(|error| format!("the compressed body does not decode: {error}"))?;
    if out.len() > max { Err(format!("the body unpacks to more than {max} bytes")) } else { Ok(out) }
}
