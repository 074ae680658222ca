package training

import (
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// NoDataWorkers is [Job.DataWorkers] of a training whose first part fetches its data itself, when a step asks for it.
const NoDataWorkers = -1

// A process that fetches data is worth it where a step then waits for less: to take a batch of one over was measured at
// 0.8 to 1.5 ms on two busy cores, and what is a small part of a step need not be hidden.
const (
	takenOver       = 0.001 // seconds
	worthHiding     = 0.03  // of a step
	keptUp          = 1.1   // by how much processes are to be faster than steps
	batchesOfWorker = 3     // of each process: two ready or in the making, one in use (ahead.py)
)

// loading is what the data of a training take.
type loading struct {
	seconds        line // to fetch, by samples, by one thread
	batch, working line // bytes of the tensors, and of what is held meanwhile, by samples
	most, unasked  int  // processes that can fetch at once, and that may where nobody has asked for some
	wanted         int  // Job.DataWorkers
	cores          int  // that this process may use
}

// loadingOf is what two probes say about the data.
func loadingOf(small, large exec.Probe) loading {
	bytes := func(of func(exec.Fetching) quantity.Bytes) line {
		return through(small.Samples, large.Samples, float64(of(small.Fetching)), float64(of(large.Fetching)))
	}
	return loading{
		seconds: through(small.Samples, large.Samples, float64(small.Fetching.Seconds), float64(large.Fetching.Seconds)),
		batch:   bytes(func(f exec.Fetching) quantity.Bytes { return f.Batch }),
		working: bytes(func(f exec.Fetching) quantity.Bytes { return f.Working }),
		most:    large.Fetching.Processes, unasked: large.Fetching.Unasked,
	}
}

// within adds what a job wants and what this process may use.
func (l loading) within(job Job) (loading, error) {
	cores, err := Devices()
	l.wanted, l.cores = job.DataWorkers, len(cores)
	return l, err
}

// workers is how many processes fetch the batches of a training whose step takes some seconds and whose parts use so
// many cores: as many as somebody wants; else none where hiding it is not worth it, and as many as keep up with the
// steps where cores are left for them, one at least, which works while parts wait.
func (l loading) workers(batch int, step float64, used int) int {
	switch {
	case l.wanted == NoDataWorkers:
		return 0
	case l.wanted > 0:
		return min(l.wanted, l.most)
	}
	fetch := l.seconds.at(float64(batch))
	if !(fetch > takenOver+worthHiding*step) {
		return 0
	}
	left := max(l.cores-used, 1)
	if keepUp := math.Ceil(keptUp * fetch / step); keepUp < float64(left) { // false where step is 0
		left = max(int(keepUp), 1)
	}
	return min(left, l.most, l.unasked)
}

// holds is what so many processes hold besides that of the first part, in bytes, with the batches that they share with
// it.
func (l loading) holds(workers, batch int) float64 {
	samples := float64(batch)
	return float64(workers) * (batchesOfWorker*l.batch.at(samples) + l.working.at(samples))
}

// reason says how the data are fetched; empty where nobody fetches them beforehand.
func (l loading) reason(workers, batch int) string {
	if workers == 0 {
		return ""
	}
	processes := "a process fetches"
	if workers > 1 {
		processes = fmt.Sprintf("%d processes fetch", workers)
	}
	return fmt.Sprintf("; %s the data while steps compute: a batch takes %s", processes,
		brief(l.seconds.at(float64(batch))))
}

// brief is a time for people, in milliseconds where it is short.
func brief(seconds float64) string {
	if seconds < 1 {
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}

// dataWorkers is how many processes fetch data for parts on devices of one class: by the time of the passes alone,
// which is known before the model is split.
func (s setup) dataWorkers(device exec.Device, parts int) int {
	step := 0.0
	for _, w := range s.model.classes[classOf(device)] {
		step += w.forward.at(float64(s.batch)) + w.backward.at(float64(s.batch))
	}
	used := parts * s.count() // a process on a GPU keeps a core at work
	if device.Kind != exec.CUDA {
		used *= max(device.Threads, 1)
	}
	return s.loading.workers(s.batch, step/float64(parts), used)
}
