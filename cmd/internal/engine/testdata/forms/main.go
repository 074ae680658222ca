// Command forms is the app of package forms: a run of each form is recorded with it.
package main

import (
	"github.com/spillway-ml/spillway/workflows/app"
	"github.com/spillway-ml/spillway/workflows/spillwaytest/forms"
)

func main() {
	app.Main(app.Options{Name: forms.App, Pipelines: forms.Pipelines(), Stages: forms.Stages()})
}
