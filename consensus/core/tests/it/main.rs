//! Behaviour of the brain, seen from outside: scripts with their full trace, properties over arbitrary commands,
//! and the field reports and fault rows that this crate answers. One binary, so that it links once.

mod answers;
mod bounds;
mod care;
mod depend;
mod dice;
mod evict;
mod explain;
mod gangs;
mod golden;
mod health;
mod inputs;
mod lab;
mod life;
mod members;
mod moves;
mod planner;
mod pledges;
mod policy;
mod props;
mod queues;
mod reasons;
mod reserve;
mod retries;
mod rules;
mod scripts;
mod shares;
mod specs;
mod speeds;
mod trust;
mod turns;
mod unified;
mod unstartable;
mod vain;
mod views;
mod waits;
