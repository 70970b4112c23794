//! The records of `journal.jif` and `N.idx`, and how they are read back, also from damaged files.
//!
//! ```text
//! journal   publish  type:2 seq:62 | id:16 bytes | expiry_us:64 | size:32 | E:32 | E bytes of message term    00, 01
//!           deliver  10 seq:62            ack  11 seq:62
//! segment   publish  1 persistent:1 rel:14 | id | expiry_us | size | E | E bytes
//!           rel-only 01 rel:14            the first for a rel is its deliver, the second its ack
//! ```
//! There is no checksum. What holds a record together: an embedded term is complete, ends where E says, and repeats
//! the id; a publish is followed by its own deliver (since 3.10). A reader that has lost its way goes on only at a
//! record that passes one of these tests: two bytes of text would pass for an ack.

use super::etf::{MARK, Message};
use super::{Finding, MessageId};
use crate::layouts::search::Credit;

const ID_BYTES: usize = 16;
/// Behind the head: id, expiry, size, E.
const REST_BYTES: usize = ID_BYTES + 8 + 4 + 4;
pub const REL_MAX: u64 = 1 << 14;
/// What a disk writes wholly or not at all.
const SECTOR_BYTES: usize = 512;
/// What a sure record needs behind its message at most: its deliver, and another publish with its own.
const SURE_BEHIND: usize = 128;
/// Nobody has counted that far.
const PLAUSIBLE_SEQ: u64 = 1 << 48;
const SEQ_MASK: u64 = (1 << 62) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Journal,
    Segment,
}

impl Form {
    pub const fn head_bytes(self) -> usize {
        match self {
            Form::Journal => 8,
            Form::Segment => 2,
        }
    }

    /// A publish record without its message.
    pub const fn fixed_bytes(self) -> usize {
        self.head_bytes() + REST_BYTES
    }

    fn head(self, data: &[u8], at: usize) -> Option<u64> {
        let bytes = data.get(at..at.checked_add(self.head_bytes())?)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn mask(self) -> u64 {
        match self {
            Form::Journal => SEQ_MASK,
            Form::Segment => REL_MAX - 1,
        }
    }

    fn kind(self, head: u64) -> u64 {
        head >> (self.head_bytes() * 8 - 2)
    }

    fn is_publish(self, head: u64) -> bool {
        match self {
            Form::Journal => self.kind(head) < 2,
            Form::Segment => self.kind(head) >= 2,
        }
    }

    fn deliver_head(self, number: u64) -> u64 {
        match self {
            Form::Journal => 2 << 62 | number,
            Form::Segment => 1 << 14 | number,
        }
    }

    fn delivered_at(self, data: &[u8], at: usize, number: u64) -> bool {
        self.head(data, at) == Some(self.deliver_head(number))
    }

    pub fn put_publish(self, out: &mut Vec<u8>, number: u64, persistent: bool, rest: &PublishRest<'_>) {
        match self {
            Form::Journal => {
                let kind = if persistent { 0 } else { 1 << 62 };
                out.extend_from_slice(&(kind | number).to_be_bytes());
            }
            Form::Segment => {
                let kind: u16 = if persistent { 0xC000 } else { 0x8000 };
                out.extend_from_slice(&(kind | number as u16).to_be_bytes());
            }
        }
        out.extend_from_slice(rest.id);
        out.extend_from_slice(&rest.expiry_us.to_be_bytes());
        out.extend_from_slice(&rest.size.to_be_bytes());
        out.extend_from_slice(&(rest.embedded.len() as u32).to_be_bytes());
        out.extend_from_slice(rest.embedded);
    }
}

pub struct PublishRest<'a> {
    pub id: &'a MessageId,
    pub expiry_us: u64,
    pub size: u32,
    pub embedded: &'a [u8],
}

pub fn put_deliver(out: &mut Vec<u8>, sequence: u64) {
    out.extend_from_slice(&(2 << 62 | sequence).to_be_bytes());
}

pub fn put_ack(out: &mut Vec<u8>, sequence: u64) {
    out.extend_from_slice(&(3 << 62 | sequence).to_be_bytes());
}

pub fn put_rel(out: &mut Vec<u8>, rel: u16) {
    out.extend_from_slice(&(1 << 14 | rel).to_be_bytes());
}

/// A publish as it stands in a file; `number` is the sequence, or the rel in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    pub offset: usize,
    pub number: u64,
    pub persistent: bool,
    pub id: MessageId,
    pub expiry_us: u64,
    pub size: u32,
    /// None: the message is in the store.
    pub message: Option<Message>,
    pub end: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Publish(Publish),
    Deliver(u64),
    Ack(u64),
    /// A publish whose message cannot be read; its number is sound as far as one can know.
    Lost(u64),
}

enum Trouble {
    Torn,
    Bad { number: u64, end: usize },
}

type Read = Result<(Publish, Option<&'static str>), Trouble>;

fn be(data: &[u8], at: usize, count: usize) -> u64 {
    data[at..at + count].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn one_bit(a: u64, b: u64) -> bool {
    (a ^ b).is_power_of_two()
}

fn nearly(a: &MessageId, b: &MessageId) -> bool {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>() == 1
}

/// The publish at `at`. What a single bit would explain is put right and named.
fn read_publish(form: Form, data: &[u8], at: usize, head: u64) -> Read {
    let body = at + form.fixed_bytes();
    if body > data.len() {
        return Err(Trouble::Torn);
    }
    let rest = at + form.head_bytes();
    let number = head & form.mask();
    let embedded = be(data, rest + 28, 4) as usize;
    let mut publish = Publish {
        offset: at,
        number,
        persistent: matches!((form, form.kind(head)), (Form::Journal, 0) | (Form::Segment, 3)),
        id: data[rest..rest + ID_BYTES].try_into().unwrap_or_default(),
        expiry_us: be(data, rest + 16, 8),
        size: be(data, rest + 24, 4) as u32,
        message: None,
        end: body,
    };
    if embedded == 0 {
        // Nothing else vouches for such a record.
        return if touches_hole(data, at, form.fixed_bytes()) { Err(Trouble::Torn) } else { Ok((publish, None)) };
    }
    let end = body.checked_add(embedded).filter(|end| *end <= data.len());
    match Message::parse(data, body) {
        Some(mut message)
            if message.id == publish.id || (Some(message.end) == end && nearly(&message.id, &publish.id)) =>
        {
            let mut repaired = None;
            if message.id != publish.id {
                (publish.id, repaired) = (message.id, Some("the id differs from the message's own in one bit"));
            } else if Some(message.end) != end {
                repaired = Some("the length of the message disagrees with the message itself");
                // What follows says which of the two is right.
                if let Some(end) = end.filter(|end| form.delivered_at(data, *end, number)) {
                    message.end = end;
                }
            } else if message.body_len != u64::from(publish.size) {
                (publish.size, repaired) = (message.body_len as u32, Some("the size disagrees with the body"));
            }
            publish.end = message.end;
            publish.message = Some(message);
            Ok((publish, repaired))
        }
        _ if form.delivered_at(data, body, number) => {
            Ok((publish, Some("a length where none is: the message is in the store")))
        }
        _ => match end {
            Some(end) => Err(Trouble::Bad { number, end }),
            None => Err(Trouble::Torn),
        },
    }
}

/// Whether a record that nobody could take for something else begins here.
fn is_sure(form: Form, data: &[u8], at: usize) -> bool {
    let body = at + form.fixed_bytes();
    let Some(head) = form.head(data, at) else { return false };
    if body > data.len() || !form.is_publish(head) {
        return false;
    }
    if data[body..].starts_with(&MARK) {
        return matches!(read_publish(form, data, at, head), Ok((publish, None)) if publish.message.is_some());
    }
    is_stored(form, data, at, head)
        && (form == Form::Journal || {
            // 16 bits agree by chance now and then: two in a row are needed in a segment.
            let next = body + form.head_bytes();
            next == data.len() || form.head(data, next).is_some_and(|head| is_stored(form, data, next, head))
        })
}

fn is_stored(form: Form, data: &[u8], at: usize, head: u64) -> bool {
    let body = at + form.fixed_bytes();
    body <= data.len()
        && form.is_publish(head)
        && be(data, body - 4, 4) == 0
        && be(data, body - 8, 4) != 0
        && form.delivered_at(data, body, head & form.mask())
}

/// A flipped type bit makes a publish look like one of the short records; `head` is how it should be.
fn is_disguised(form: Form, data: &[u8], at: usize, head: u64) -> bool {
    let embedded = data.get(at + form.fixed_bytes()..).is_some_and(|rest| rest.starts_with(&MARK));
    if embedded {
        return matches!(read_publish(form, data, at, head), Ok((_, None)));
    }
    is_stored(form, data, at, head)
}

fn resync(form: Form, data: &[u8], from: usize, credit: &mut Credit) -> usize {
    let sure = |at: &usize| {
        credit.advance(*at as u64);
        let body = at + form.fixed_bytes();
        // A term is walked through: that is paid for.
        let term = data.get(body..).is_some_and(|rest| rest.starts_with(&MARK));
        let whole = if term { be(data, body - 4, 4) } else { 0 };
        credit.spend(whole) && is_sure(form, &data[..data.len().min(body + whole as usize + SURE_BEHIND)], *at)
    };
    (from..data.len()).find(sure).unwrap_or(data.len())
}

/// Whether a sector that the bytes touch was never written: then what stands there is not a record's own.
fn touches_hole(data: &[u8], at: usize, len: usize) -> bool {
    (at / SECTOR_BYTES..=(at + len - 1) / SECTOR_BYTES).any(|sector| {
        let start = sector * SECTOR_BYTES;
        data.get(start..(start + SECTOR_BYTES).min(data.len())).is_some_and(|s| s.iter().all(|byte| *byte == 0))
    })
}

fn gap(data: &[u8], from: usize, to: usize) -> Finding {
    let zeros = data[from..to].iter().all(|byte| *byte == 0);
    let what = if zeros { "zeros" } else { "bytes that are no record" };
    if to == data.len() {
        Finding::new("unsound-tail", from, to - from, format!("{what} after the last sound record"))
    } else {
        Finding::new("bad-record", from, to - from, format!("{what}; sound records follow"))
    }
}

/// Every action in the journal, in order.
pub fn walk_journal(data: &[u8], mut visit: impl FnMut(Action)) -> Vec<Finding> {
    let form = Form::Journal;
    let (mut at, mut findings, mut last) = (0, Vec::new(), None::<u64>);
    let mut credit = Credit::new(data.len() as u64);
    while at < data.len() {
        let Some(head) = form.head(data, at) else {
            findings.push(gap(data, at, data.len()));
            break;
        };
        let sequence = head & SEQ_MASK;
        let disguised = !form.is_publish(head) && is_disguised(form, data, at, sequence);
        // A deliver that says the number of the publish before it is whole, also where its zeros begin a sector.
        let cut = touches_hole(data, at, 8) && last != Some(sequence);
        if !form.is_publish(head) && !disguised && !cut {
            visit(if form.kind(head) == 2 { Action::Deliver(sequence) } else { Action::Ack(sequence) });
            at += form.head_bytes();
            continue;
        }
        let zeros = data[at..(at + form.fixed_bytes()).min(data.len())].iter().all(|byte| *byte == 0);
        let (head, cut) = (if disguised { sequence } else { head }, cut && !form.is_publish(head));
        let mut read = read_publish(form, data, at, head);
        if let Ok((publish, repaired)) = &mut read {
            *repaired = repaired.or(disguised.then_some("the type of the record"));
            if let Some(own) = own_sequence(data, publish, last) {
                *repaired = Some("publish and deliver differ in one bit of the sequence");
                publish.number = own;
            }
        }
        match read {
            // The same sequence again is a deliver with a flipped type.
            Ok((publish, repaired)) if !zeros && !cut && last != Some(publish.number) => {
                if let Some(what) = repaired {
                    findings.push(Finding::new("repaired", at, publish.end - at, what).about(publish.number));
                }
                (at, last) = (publish.end, Some(publish.number));
                visit(Action::Publish(publish));
            }
            Err(Trouble::Bad { number, end }) if !zeros && !cut && form.delivered_at(data, end, number) => {
                let text = "the message cannot be read";
                findings.push(Finding::new("bad-record", at, end - at, text).about(number));
                visit(Action::Lost(number));
                at = end;
            }
            _ => {
                let skip = shorts_follow(form, data, at + 8, |head| (head & SEQ_MASK) < PLAUSIBLE_SEQ);
                let next =
                    if skip && !touches_hole(data, at, 8) { at + 8 } else { resync(form, data, at + 1, &mut credit) };
                findings.push(gap(data, at, next));
                at = next;
            }
        }
    }
    findings
}

/// The sequence of a publish whose deliver differs from it in one bit: the one that fits its neighbours.
fn own_sequence(data: &[u8], publish: &Publish, last: Option<u64>) -> Option<u64> {
    let form = Form::Journal;
    let head = form.head(data, publish.end).filter(|head| form.kind(*head) == 2)?;
    let delivered = Some(head & SEQ_MASK).filter(|delivered| one_bit(*delivered, publish.number))?;
    let next = form.head(data, publish.end + 8).filter(|head| form.is_publish(*head)).map(|head| head & SEQ_MASK);
    let fits = |number: u64| last.is_some_and(|last| last + 1 == number) || next == Some(number + 1);
    Some(if fits(delivered) && !fits(publish.number) { delivered } else { publish.number })
}

/// Whether short records follow, up to the end or to a sure publish: then only the one before them is damaged.
fn shorts_follow(form: Form, data: &[u8], from: usize, plausible: impl Fn(u64) -> bool) -> bool {
    let mut at = from;
    while at < data.len() && !is_sure(form, data, at) {
        match form.head(data, at) {
            Some(head) if !form.is_publish(head) && form.kind(head) != 0 && plausible(head) => at += form.head_bytes(),
            _ => return false,
        }
    }
    at <= data.len()
}

/// The number that the deliver behind a publish says, if it differs in one bit and fits its neighbours better:
/// entries lie in descending order.
fn own_number(data: &[u8], publish: &Publish, last: Option<u64>, count: u64) -> Option<u64> {
    let form = Form::Segment;
    let head = form.head(data, publish.end).filter(|head| form.kind(*head) == 1)?;
    let delivered = Some(head & form.mask()).filter(|own| *own < count && one_bit(*own, publish.number))?;
    let next = form.head(data, publish.end + 2).filter(|head| form.is_publish(*head)).map(|head| head & form.mask());
    let fits = |number: u64| last == Some(number + 1) || next.is_some_and(|next| next + 1 == number);
    (fits(delivered) && !fits(publish.number)).then_some(delivered)
}

/// Every action in a segment file of `count` entries.
pub fn walk_segment(data: &[u8], count: u64, visit: impl FnMut(Action)) -> Vec<Finding> {
    let mut walk = SegmentWalk {
        data,
        count,
        visit,
        seen: vec![Entry::Absent; count as usize],
        credit: Credit::new(data.len() as u64),
        findings: Vec::new(),
        paired: 0,
        unpaired: 0,
        last: None,
        newest: None,
    };
    let mut at = 0;
    while at < data.len() {
        let head = SEGMENT.head(data, at).unwrap_or(0);
        let before = walk.newest.take();
        let cut = touches_hole(data, at, 2) && before != Some(head & SEGMENT.mask());
        let short = (SEGMENT.kind(head) == 1 && !cut).then(|| walk.short(at, head & SEGMENT.mask(), before)).flatten();
        at = short.unwrap_or_else(|| walk.publish(at, head, cut));
    }
    walk.findings
}

const SEGMENT: Form = Form::Segment;

/// What the records of a segment have said of one entry so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Absent,
    Published,
    Delivered,
    Acked,
}

struct SegmentWalk<'a, V> {
    data: &'a [u8],
    count: u64,
    visit: V,
    seen: Vec<Entry>,
    credit: Credit,
    findings: Vec<Finding>,
    /// Delivers that lie directly behind their publish, and those that do not.
    paired: u32,
    unpaired: u32,
    /// The publish before, and, directly behind it, the same.
    last: Option<u64>,
    newest: Option<u64>,
}

impl<V: FnMut(Action)> SegmentWalk<'_, V> {
    /// A rel-only record: the first for an entry is a deliver, the second an ack. Returns where the next record begins; None
    /// when it is a publish with a flipped type.
    fn short(&mut self, at: usize, number: u64, before: Option<u64>) -> Option<usize> {
        // Since 3.10 a publish is followed by its own deliver: another rel there is a flipped bit, not an ack.
        let own = before.filter(|own| *own != number && one_bit(*own, number) && self.paired > 0 && self.unpaired == 0);
        if let Some(own) = own {
            let text = "a rel-only record that differs in one bit from the publish before it";
            self.findings.push(Finding::new("repaired", at, 2, text).about(own));
            self.seen[own as usize] = Entry::Delivered;
            (self.visit)(Action::Deliver(own));
            return Some(at + 2);
        }
        let next = match self.seen.get(number as usize) {
            Some(Entry::Published) => (Entry::Delivered, Action::Deliver(number)),
            Some(Entry::Delivered) => (Entry::Acked, Action::Ack(number)),
            _ => return (!is_disguised(SEGMENT, self.data, at, 0xC000 | number)).then(|| self.superfluous(at, number)),
        };
        match before {
            Some(own) if own == number => self.paired += 1,
            Some(_) => self.unpaired += 1,
            None => {}
        }
        self.seen[number as usize] = next.0;
        (self.visit)(next.1);
        Some(at + 2)
    }

    /// A rel-only record that no entry waits for.
    fn superfluous(&mut self, at: usize, number: u64) -> usize {
        let text = format!("rel-only record for {number}, which is not there or acked already");
        self.findings.push(Finding::new("bad-record", at, 2, text));
        if is_sure(SEGMENT, self.data, at + 2) || at + 2 == self.data.len() {
            at + 2
        } else {
            resync(SEGMENT, self.data, at + 2, &mut self.credit)
        }
    }

    /// A publish, perhaps with a flipped type, or bytes that are none. Returns where the next record begins.
    fn publish(&mut self, at: usize, head: u64, cut: bool) -> usize {
        let (data, number) = (self.data, head & SEGMENT.mask());
        let typed = SEGMENT.is_publish(head);
        let publish_head = if typed { head } else { 0xC000 | number };
        let plausible = head != 0 && number < self.count && (typed || !cut);
        match read_publish(SEGMENT, data, at, publish_head) {
            Ok((publish, repaired)) if plausible && (typed || is_disguised(SEGMENT, data, at, publish_head)) => {
                self.sound_publish(at, publish, repaired.or((!typed).then_some("the type of the record")))
            }
            Err(Trouble::Bad { number, end })
                if plausible && (SEGMENT.delivered_at(data, end, number) || is_sure(SEGMENT, data, end)) =>
            {
                let text = "the message cannot be read";
                self.findings.push(Finding::new("bad-record", at, end - at, text).about(number));
                if self.begin(number) {
                    (self.visit)(Action::Lost(number));
                }
                end
            }
            _ => self.no_record(at),
        }
    }

    fn sound_publish(&mut self, at: usize, mut publish: Publish, mut repaired: Option<&'static str>) -> usize {
        let end = publish.end;
        if let Some(own) = own_number(self.data, &publish, self.last, self.count) {
            repaired = Some("publish and deliver differ in one bit of the entry's number");
            publish.number = own;
        }
        let number = publish.number;
        self.last = Some(number);
        if let Some(what) = repaired {
            self.findings.push(Finding::new("repaired", at, end - at, what).about(number));
        }
        if self.begin(number) {
            self.newest = Some(number);
            (self.visit)(Action::Publish(publish));
        } else {
            let text = "a second publish for the same entry; the first is used";
            self.findings.push(Finding::new("bad-record", at, end - at, text).about(number));
        }
        end
    }

    /// The entry is there from now on; false if it was before.
    fn begin(&mut self, number: u64) -> bool {
        let entry = &mut self.seen[number as usize];
        let is_new = *entry == Entry::Absent;
        if is_new {
            *entry = Entry::Published;
        }
        is_new
    }

    /// Over bytes that are no record: one short one if others follow it, else to the next that is sure.
    fn no_record(&mut self, at: usize) -> usize {
        let seen = &self.seen;
        let awaited = |head: u64| {
            let entry = seen.get((head & SEGMENT.mask()) as usize);
            entry.is_some_and(|entry| matches!(entry, Entry::Published | Entry::Delivered))
        };
        let skip = !touches_hole(self.data, at, 2) && shorts_follow(SEGMENT, self.data, at + 2, awaited);
        let next = if skip { at + 2 } else { resync(SEGMENT, self.data, at + 1, &mut self.credit) };
        self.findings.push(gap(self.data, at, next));
        next
    }
}
