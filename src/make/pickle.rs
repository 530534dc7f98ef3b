//! The part of Python's pickle that PyTorch's checkpoints use (Python, `Lib/pickletools.py`), read as data.
//!
//! Nothing is ever called: a class or function that this file does not know becomes [`Node::Opaque`]. Values lie in one
//! table and name each other by their place in it, so that neither depth nor circles can hurt; its size is bounded.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::bytes::{Cut, Reader};

/// Values of one pickle, at most.
const MAX_NODES: usize = 1_000_000;

/// Bytes of a class's module and name, at most; one with longer names is none that matters.
const MAX_NAME_BYTES: usize = 128;

/// A value's place in the table.
pub(super) type Id = usize;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Node {
    None,
    Int(i64),
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function, by its module and name.
    Global(String, String),
    /// A persistent id: where the bytes of a tensor are.
    Persistent(Id),
    /// A class or function that was called, and with what.
    Call(Id, Id),
    /// Numbers and bytes that no tensor depends on, and objects.
    Opaque,
}

/// A pickle that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum PickleError {
    #[error("the pickle ends early")]
    Cut(#[from] Cut),
    #[error("the pickle holds the unknown opcode {0:#04x}")]
    Opcode(u8),
    #[error("the pickle is damaged: {0}")]
    Damaged(&'static str),
    #[error("the pickle holds over {MAX_NODES} values")]
    TooLarge,
}

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

impl Pickle {
    /// Reads one pickle from where the reader is.
    pub(super) fn read(bytes: &mut Reader<'_>) -> Result<Self, PickleError> {
        let mut machine = Machine::default();
        while machine.step(bytes)? {}
        let root = machine.pop()?;
        Ok(Self { nodes: machine.nodes, root })
    }

    pub(super) fn root(&self) -> Id {
        self.root
    }

    pub(super) fn get(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// All of its values.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn int(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            Node::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Machine {
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl Machine {
    /// Runs one opcode; false at the end.
    fn step(&mut self, bytes: &mut Reader<'_>) -> Result<bool, PickleError> {
        match bytes.u8()? {
            b'.' => return Ok(false),
            0x80 => drop(bytes.take(1)?),
            0x95 => drop(bytes.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Node::None)?,
            0x88 => self.push(Node::Int(1))?,
            0x89 => self.push(Node::Int(0))?,
            b'I' | b'L' => {
                let line = bytes.line()?.trim_end_matches('L');
                let value = line.parse().map_or(Node::Opaque, Node::Int);
                self.push(value)?;
            }
            b'J' => {
                let value = i32::from_le_bytes(bytes.array()?);
                self.push(Node::Int(value.into()))?;
            }
            b'K' => {
                let value = bytes.u8()?;
                self.push(Node::Int(value.into()))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(bytes.array()?);
                self.push(Node::Int(value.into()))?;
            }
            0x8a => {
                let length = u64::from(bytes.u8()?);
                self.long(bytes, length)?;
            }
            0x8b => {
                let length = u32::from_le_bytes(bytes.array()?);
                self.long(bytes, length.into())?;
            }
            b'F' => {
                bytes.line()?;
                self.push(Node::Opaque)?;
            }
            b'G' => self.opaque(bytes, 8)?,
            b'S' => {
                let line = bytes.line()?.trim_matches(['\'', '"']).to_owned();
                self.push(Node::Text(line))?;
            }
            b'V' => {
                let line = bytes.line()?.to_owned();
                self.push(Node::Text(line))?;
            }
            b'U' | 0x8c => {
                let length = u64::from(bytes.u8()?);
                self.text(bytes, length)?;
            }
            b'X' | b'T' => {
                let length = u32::from_le_bytes(bytes.array()?);
                self.text(bytes, length.into())?;
            }
            0x8d => {
                let length = u64::from_le_bytes(bytes.array()?);
                self.text(bytes, length)?;
            }
            b'C' => {
                let length = bytes.u8()?;
                self.opaque(bytes, length.into())?;
            }
            b'B' => {
                let length = u32::from_le_bytes(bytes.array()?);
                self.opaque(bytes, length.into())?;
            }
            0x8e | 0x96 => {
                let length = u64::from_le_bytes(bytes.array()?);
                self.opaque(bytes, length)?;
            }
            b')' => self.push(Node::Tuple(Vec::new()))?,
            b't' => {
                let items = self.since_mark()?;
                self.push(Node::Tuple(items))?;
            }
            count @ 0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x84..count {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Node::Tuple(items))?;
            }
            b']' | 0x8f => self.push(Node::List(Vec::new()))?,
            b'l' | 0x91 => {
                let items = self.since_mark()?;
                self.push(Node::List(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.append(items)?;
            }
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b'd' => {
                let items = self.since_mark()?;
                self.push(Node::Dict(pairs(&items)))?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(pairs(&items))?;
            }
            b'c' => {
                let (module, name) = (bytes.line()?.to_owned(), bytes.line()?.to_owned());
                self.push(Node::Global(module, name))?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Node::Text(module), Node::Text(name)) = (&self.nodes[module], &self.nodes[name]) else {
                    return Err(PickleError::Damaged("a name that is no text"));
                };
                // A long text named again and again would multiply the file.
                let short = module.len() + name.len() <= MAX_NAME_BYTES;
                self.push(if short { Node::Global(module.clone(), name.clone()) } else { Node::Opaque })?;
            }
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            0x92 => {
                let (_, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            b'o' => {
                let items = self.since_mark()?;
                let callable = *items.first().ok_or(PickleError::Damaged("an object without a class"))?;
                self.push(Node::Tuple(items[1..].to_vec()))?;
                let arguments = self.pop()?;
                self.call(callable, arguments)?;
            }
            b'i' => {
                let (module, name) = (bytes.line()?.to_owned(), bytes.line()?.to_owned());
                let items = self.since_mark()?;
                self.push(Node::Global(module, name))?;
                self.push(Node::Tuple(items))?;
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            // An object's attributes: no tensor of a state dict depends on them.
            b'b' => drop(self.pop()?),
            b'p' => self.remember(place(bytes)?)?,
            b'q' => {
                let at = bytes.u8()?;
                self.remember(at.into())?;
            }
            b'r' => {
                let at = u32::from_le_bytes(bytes.array()?);
                self.remember(at.into())?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'g' => self.recall(place(bytes)?)?,
            b'h' => {
                let at = bytes.u8()?;
                self.recall(at.into())?;
            }
            b'j' => {
                let at = u32::from_le_bytes(bytes.array()?);
                self.recall(at.into())?;
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))?;
            }
            unknown => return Err(PickleError::Opcode(unknown)),
        }
        Ok(true)
    }

    fn push(&mut self, node: Node) -> Result<(), PickleError> {
        if self.nodes.len() >= MAX_NODES {
            return Err(PickleError::TooLarge);
        }
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
        Ok(())
    }

    /// The top of the stack above the last mark.
    fn pop(&mut self) -> Result<Id, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top(&self) -> Result<Id, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let above = self.stack.get(floor..).unwrap_or_default();
        above.last().copied().ok_or(PickleError::Damaged("too few values"))
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or(PickleError::Damaged("no mark"))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn text(&mut self, bytes: &mut Reader<'_>, length: u64) -> Result<(), PickleError> {
        let text = String::from_utf8_lossy(bytes.take(length)?).into_owned();
        self.push(Node::Text(text))
    }

    fn opaque(&mut self, bytes: &mut Reader<'_>, length: u64) -> Result<(), PickleError> {
        bytes.take(length)?;
        self.push(Node::Opaque)
    }

    /// A little-endian integer of any length; one of over 8 bytes is nothing that a tensor needs.
    fn long(&mut self, bytes: &mut Reader<'_>, length: u64) -> Result<(), PickleError> {
        let digits = bytes.take(length)?;
        let negative = digits.last().is_some_and(|last| last & 0x80 != 0);
        let mut value = if negative { [0xff; 8] } else { [0; 8] };
        let node = match value.get_mut(..digits.len()) {
            Some(low) => {
                low.copy_from_slice(digits);
                Node::Int(i64::from_le_bytes(value))
            }
            None => Node::Opaque,
        };
        self.push(node)
    }

    fn append(&mut self, mut items: Vec<Id>) -> Result<(), PickleError> {
        let to = self.top()?;
        if let Node::List(list) = &mut self.nodes[to] {
            list.append(&mut items);
        }
        Ok(())
    }

    fn set(&mut self, mut items: Vec<(Id, Id)>) -> Result<(), PickleError> {
        let to = self.top()?;
        if let Node::Dict(dict) = &mut self.nodes[to] {
            dict.append(&mut items);
        }
        Ok(())
    }

    fn call(&mut self, callable: Id, arguments: Id) -> Result<(), PickleError> {
        let node = match &self.nodes[callable] {
            Node::Global(module, name)
                if module == "collections" && matches!(name.as_str(), "OrderedDict" | "defaultdict") =>
            {
                Node::Dict(Vec::new())
            }
            _ => Node::Call(callable, arguments),
        };
        self.push(node)
    }

    fn remember(&mut self, at: u64) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(at, top);
        Ok(())
    }

    fn recall(&mut self, at: u64) -> Result<(), PickleError> {
        let id = *self.memo.get(&at).ok_or(PickleError::Damaged("a value that was never remembered"))?;
        if self.stack.len() >= MAX_NODES {
            return Err(PickleError::TooLarge);
        }
        self.stack.push(id);
        Ok(())
    }
}

fn pairs(items: &[Id]) -> Vec<(Id, Id)> {
    items.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)).collect()
}

/// A place of the memo, as text.
fn place(bytes: &mut Reader<'_>) -> Result<u64, PickleError> {
    bytes.line()?.parse().map_err(|_| PickleError::Damaged("a place that is no number"))
}
