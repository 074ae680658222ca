package chain

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
)

// BenchmarkCommands makes the commands of the largest stages. It happens within one workflow task, which Temporal's SDK
// ends after a second.
func BenchmarkCommands(b *testing.B) {
	parsed, err := Parse("chain.yaml", []byte(`name: wide
code: none
parameters: {epochs: 3}
stages:
  many:
    for_each: {i: {to: 100}, j: {to: 100}}
    run: python train.py --i ${i} --j "${j}" --epochs ${epochs}
    environment: {EPOCHS: "${epochs}"}
    outputs: {model: model.pt}
  gather:
    for_each: {k: {to: 10}}
    run: [gather]
    files: {models/: many.model}
`), Checks{})
	if err != nil {
		b.Fatal(err)
	}
	bound, err := parsed.bind(nil)
	if err != nil {
		b.Fatal(err)
	}
	ref := activities.Ref{Digest: strings.Repeat("a", 64), Bytes: 1}
	for range maxTasks {
		bound.results["many"] = append(bound.results["many"],
			wire.CommandResult{Outputs: map[string]wire.CommandFile{"model": {Path: "model.pt", Artifact: ref}}})
	}
	for name, want := range map[string]int{"many": maxTasks, "gather": 10} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				commands, err := bound.commands(bound.chain.stage(name))
				if err != nil || len(commands) != want {
					b.Fatalf("%d commands and %v, want %d", len(commands), err, want)
				}
				if _, err := json.Marshal(commands); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
