package slot

import (
	"sync"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Proofs are what shows that this host was given the attempts that it has in hand: each came with the token of its
// task. The zero value has none, and a nil one keeps none. Its methods may be called concurrently.
type Proofs struct {
	mu sync.Mutex
	of map[ofTask]map[int]string // by attempt; guarded by mu
}

type ofTask struct{ run, task string }

// Of is the proof of an attempt in hand; empty where it came without one, or is none. Attempt 0 is any of the task.
func (p *Proofs) Of(run, task string, attempt int) string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.of[ofTask{run, task}]
	if attempt != 0 {
		return all[attempt]
	}
	newest := 0
	for number := range all {
		newest = max(newest, number)
	}
	return all[newest]
}

// take notes the proof that came with the token of an attempt, and returns it.
func (p *Proofs) take(run, task string, attempt int, token []byte) (proof string) {
	proof, _ = wire.SplitProof(token)
	if p == nil || proof == "" {
		return proof
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	of := ofTask{run, task}
	if p.of == nil {
		p.of = map[ofTask]map[int]string{}
	}
	if p.of[of] == nil {
		p.of[of] = map[int]string{}
	}
	p.of[of][attempt] = proof
	return proof
}

// forget forgets that of an attempt which is over.
func (p *Proofs) forget(run, task string, attempt int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	of := ofTask{run, task}
	if delete(p.of[of], attempt); len(p.of[of]) == 0 {
		delete(p.of, of)
	}
}
