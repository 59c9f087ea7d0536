//! Unlike GPUs and uneven work: which job runs on which model in the next round. Pure functions over numbers, without
//! state, hosts or clock; `seats` alone knows hosts. The production planner and `rota sim` call the same `round`.

pub mod assign;
pub mod shares;
pub mod table;
