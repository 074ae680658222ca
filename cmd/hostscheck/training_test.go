//go:build linux

package hostscheck_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// steps are those of a training; an agent is killed when there is a checkpoint of one after struck of them.
const steps, struck = 150, 40

// training is the command that trains a model.
type training struct {
	*process

	out string // the directory of what comes back
}

// trained is what a training came to, as the command tells it.
type trained struct {
	Losses   []float64          `json:"losses"` // of each step since Resumed
	Resumed  int                `json:"resumed"`
	Run      string             `json:"run"`
	Training predictor.Training `json:"training"`

	model []byte // the file of the trained model
}

// trains trains a model in two replicas on one host, on those of both agents, and there again while one of them is
// killed, and looks that all come to the same, to the last bit.
func (f *field) trains(t *testing.T) {
	t.Helper()
	f.adopt(t)
	// A command has the PATH of who sends it; a Python knows its environment by its own path.
	python := fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", torchtest.Python2(t))
	programs := f.network().programs()
	f.network().do(os.Mkdir(programs, 0o755),
		os.WriteFile(filepath.Join(programs, "python3"), python, 0o755)) //nolint:gosec // it is run
	one := f.train("one").ends()
	two := f.train("two", "--hosts", "2").ends()
	f.wantTrained("on two hosts", one, two)

	third := f.train("three", "--hosts", "2")
	third.says(`"step":` + strconv.Itoa(struck) + ",")
	f.agents[1].host.killAll()
	<-f.agents[1].ended
	killed := time.Now()
	time.Sleep(restart)
	f.agents[1].again()
	resumed := third.ends()
	f.wantTrained("on two hosts of which one was killed", one, resumed)
	if resumed.Resumed == 0 {
		t.Error("the training did not go on from a checkpoint after an agent was killed")
	}
	told := fmt.Sprintf("a training of %d steps on two hosts, one of which was killed after step %d: it went on from the "+
		"checkpoint of step %d, and ended %s after that", steps, struck, resumed.Resumed, tenths(time.Since(killed)))
	f.took = append(f.took, told)
	t.Log(told)
	f.wantLost(resumed.Run, "agent2")
	f.upAll()
}

// train starts a training of the sample's transformer, on the text of this module's documents.
func (f *field) train(name string, flags ...string) *training {
	f.t.Helper()
	h := f.stack.host
	for from, to := range map[string]string{
		"../../workflows/characters/model.py": "characters/model.py", "../README.md": "text.txt",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			f.t.Fatal(err)
		}
		h.write(to, text, 0o600)
	}
	f.trainings++
	out := filepath.Join(h.dir, name)
	return &training{out: out, process: h.start("train-"+name, spillway(append([]string{
		"train", filepath.Join(h.dir, "characters", "model.py") + ":build", "--data", filepath.Join(h.dir, "text.txt"),
		"--name", "characters-" + name, "--replicas", "2", "--partitions", "1", "--micro-batches", "1", "--data-workers", "0",
		"--cpu", "1", "--memory", "1536MiB", "--steps", strconv.Itoa(steps), "--checkpoint-every", "3s", "--json",
		"--out", out, "--state", f.stack.state,
	}, flags...)...))}
}

// ends waits for the end of a training, and returns what it came to.
func (r *training) ends() (came trained) {
	t := r.host.t
	t.Helper()
	until(t, filepath.Base(r.log)+" ends", r.hasEnded)
	if r.err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(r.log), r.err, tail(r.printed(), 20))
	}
	for line := range strings.Lines(r.printed()) {
		var told struct {
			Result *trained `json:"result"`
		}
		if json.Unmarshal([]byte(line), &told) == nil && told.Result != nil {
			came = *told.Result
		}
	}
	var err error
	if came.model, err = os.ReadFile(filepath.Join(r.out, "model.safetensors")); err != nil {
		t.Fatalf("%v\n%s", err, tail(r.printed(), 20))
	}
	return came
}

// wantTrained compares a training with one on one host.
func (f *field) wantTrained(what string, one, two trained) {
	f.t.Helper()
	if len(one.Losses) != steps || one.Training.Replicas != 2 {
		f.t.Fatalf("the training on one host has %d losses and %d replicas, want %d and 2", len(one.Losses),
			one.Training.Replicas, steps)
	}
	if two.Resumed > steps || !slices.Equal(one.Losses[two.Resumed:], two.Losses) {
		f.t.Errorf("the losses %s, from step %d on, are\n%v\nwant those on one host\n%v", what, two.Resumed, two.Losses,
			one.Losses)
	}
	if !bytes.Equal(one.model, two.model) {
		f.t.Errorf("the model that was trained %s is not that of one host", what)
	}
	var hosts []string
	for _, host := range two.Training.Hosts {
		hosts = append(hosts, host.Name)
	}
	slices.Sort(hosts)
	if want := []string{"agent1", "agent2"}; !slices.Equal(hosts, want) {
		f.t.Errorf("it was trained on hosts %v, want %v", hosts, want)
	}
}

// wantLost looks that the attempt before the last of a run was lost with a host.
func (f *field) wantLost(run, host string) {
	f.t.Helper()
	attempts, err := f.attempts(run)
	if err != nil {
		f.t.Fatal(err)
	}
	lost := slices.ContainsFunc(attempts, func(a timeline.Attempt) bool {
		return a.Outcome == predictor.Lost && (a.Host == host || strings.Contains(a.Error, host))
	})
	if !lost || attempts[len(attempts)-1].Outcome != predictor.Succeeded {
		f.t.Errorf("the attempts are %+v; want one that was lost with %s, and then one that succeeded", attempts, host)
	}
}
