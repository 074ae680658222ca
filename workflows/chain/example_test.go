package chain_test

import (
	"fmt"

	"github.com/spillway-ml/spillway/workflows/chain"
)

func ExampleParse() {
	_, err := chain.Parse("chain.yaml", []byte(`name: churn
stages:
  train:
    run: python train.py --epochs ${epoch}
    memroy: 2GiB
parameters: {epochs: 3}
`), chain.Checks{})
	fmt.Println(err)
	// Output:
	// chain.yaml:4:10: ${epoch} is no parameter and no variable of for_each; nearest: epochs; write $${epoch} to leave it
	// to the shell chain.yaml:5:5: unknown key "memroy" in stage train; nearest: memory
}
