package training

import "github.com/spillway-ml/spillway/predictor"

// InTurn returns an observer that tells one after another.
func InTurn(first, second Observer) Observer {
	return Observer{
		Planned: func(plan predictor.Training) {
			heard(first.Planned, plan)
			heard(second.Planned, plan)
		},
		Progressed: func(p Progress) {
			heard(first.Progressed, p)
			heard(second.Progressed, p)
		},
		Checkpointed: func(directory string, step int64) {
			for _, one := range []Observer{first, second} {
				if one.Checkpointed != nil {
					one.Checkpointed(directory, step)
				}
			}
		},
	}
}

// heard calls tell with what is to be told, if anybody listens.
func heard[T any](tell func(T), what T) {
	if tell != nil {
		tell(what)
	}
}
