//! One subject against many filters: few are tried one by one, many are looked up.

use std::collections::HashSet;

use super::{Filter, PatternSet};

/// Up to this many, trying all of them is quicker than building anything.
const TRIED_MAX: usize = 8;

/// Whether any of the filters selects a subject. Without filters none does.
pub struct Matcher<'a> {
    tried: &'a [Filter],
    literals: HashSet<&'a [u8]>,
    wild: PatternSet,
}

impl<'a> Matcher<'a> {
    pub fn new(filters: &'a [Filter]) -> Self {
        let many = filters.len() > TRIED_MAX;
        let mut made =
            Matcher { tried: if many { &[] } else { filters }, literals: HashSet::new(), wild: PatternSet::default() };
        for filter in filters.iter().filter(|_| many) {
            if filter.is_literal() {
                made.literals.insert(filter.text());
            } else {
                made.wild.insert(if filter.takes_all() { b">" } else { filter.text() }, 0);
            }
        }
        made
    }

    #[inline]
    pub fn matches(&self, subject: &[u8]) -> bool {
        self.tried.iter().any(|filter| filter.matches(subject))
            || self.literals.contains(subject)
            || (!self.wild.is_empty() && self.wild.selects(subject))
    }
}
