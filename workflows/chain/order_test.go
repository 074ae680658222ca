package chain_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workflows/chain"
)

func TestStepsComeInAnOrderInWhichTheyCanRun(t *testing.T) {
	t.Parallel()
	c, err := chain.Parse("c.yaml", []byte(`
name: n
code: none
stages:
  pick: {run: "pick ${prepare.result.rows}", files: {models/: train.model}}
  train: {for_each: {lr: [1, 2], seed: [3]}, run: train, outputs: {model: m}, after: [prepare]}
  alone: {run: x}
  prepare: {run: p}
`), chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	want := []chain.Step{
		{Stage: "alone", Last: true},
		{Stage: "prepare"},
		{Stage: "train", After: []string{"prepare"}, Over: []string{"lr", "seed"}},
		{Stage: "pick", After: []string{"prepare", "train"}, Last: true},
	}
	got := c.Steps()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, want := got[2].String(), "train for each lr and seed, after prepare"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
