package gpucheck

import "testing"

func TestWhatPlainPyTorchSaysOfItsWorkIsRead(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]work{
		"parameters 91 flops 1.5e12 rate 3e14": {1.5e12, 3e14},
		"parameters 91":                        {},
		"parameters 91 flops 0.0 rate 3e14":    {},
		"parameters 91 flops nan rate 3e14":    {},
		"parameters 91 flops 1e3 rate fast":    {},
		"flops 91 parameters 1e3 rate 1e3":     {},
		"":                                     {},
	} {
		parameters, got, err := parseWork(line)
		if got != want || (err == nil) != (want != work{}) || err == nil && parameters != "91" {
			t.Errorf("%q: got %v, %v and %v", line, parameters, got, err)
		}
	}
}

func TestOnlyATorchThatCompilesIsAskedTo(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"1.13.1": false, "2.3.1+cu118": false, "2.4.0": true, "2.11.0+cu130": true, "3.0": true, "": false, "later": false,
	} {
		if compiles(version) != want {
			t.Errorf("torch %q compiles: %v", version, !want)
		}
		lacks := step{needs: aCompiler}.lacking(Machine{Torch: version, Device: "cpu"})
		if (lacks == "") != want {
			t.Errorf("torch %q: a step lacks %q", version, lacks)
		}
	}
}
