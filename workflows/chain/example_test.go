package chain_test

import (
	"fmt"

	"github.com/spillway-ml/spillway/workflows/chain"
)

func ExampleParse() {
	_, err := chain.Parse("c.yaml", []byte(`name: churn
stages:
  fit:
    run: python fit.py --lr ${lrr}
    memroy: 2GiB
parameters: {lr: 3}
`), chain.Checks{})
	fmt.Println(err)
	// Output:
	// c.yaml:4:10: ${lrr} is no parameter and no variable of for_each; nearest: lr; write $${lrr} to leave it to the shell
	// c.yaml:5:5: unknown key "memroy" in stage fit; nearest: memory
}
