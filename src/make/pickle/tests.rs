//! Pickles that nobody's training code writes.

use super::super::bytes::Reader;
use super::{Node, Pickle};

/// A text that is remembered, and then named as a class `times` times: five bytes each.
#[test]
fn a_long_name_is_not_copied_for_each_class_of_that_name() {
    let (length, times) = (1_000_000_u32, 1000);
    let mut bytes = vec![0x80, 4, b'X'];
    bytes.extend(length.to_le_bytes());
    bytes.extend(std::iter::repeat_n(b'a', length as usize));
    bytes.extend([b'q', 0, b'0']);
    for _ in 0..times {
        bytes.extend([b'h', 0, b'h', 0, 0x93, b'0']);
    }
    bytes.extend(*b"N.");
    let pickle = Pickle::read(&mut Reader::new(&bytes)).unwrap();
    let held: usize = pickle
        .nodes()
        .iter()
        .map(|node| match node {
            Node::Text(text) => text.len(),
            Node::Global(module, name) => module.len() + name.len(),
            _ => 0,
        })
        .sum();
    assert_eq!((held, pickle.nodes().len()), (length as usize, times + 2));
}
