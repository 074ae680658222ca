package flag

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/join"
)

// addListen adds the flags of the port for other machines.
func addListen(to *engine.ListenConfig, flags *pflag.FlagSet) {
	flags.Var(endpoint{&to.Address}, "listen", "`ADDRESS`, host and port, at which other machines reach this one, over "+
		"TLS: hosts that join, the API and the page; such as 0.0.0.0:7475 (default none: this machine only)")
	flags.Var(names{&to.Advertise}, "advertise", "`NAME` or address by which they reach it; may be given several times "+
		"(default the name of this machine, and the addresses that are listened on)")
	flags.StringVar(&to.CertificateFile, "tls-certificate", "", "`FILE` of the certificate of that port, as PEM, with "+
		"those above it; it is read again when it changes (default one of the stack's own, which renews itself)")
	flags.StringVar(&to.KeyFile, "tls-key", "", "`FILE` of the key of that certificate, as PEM")
}

// endpoint is a host, which may be empty, and a port.
type endpoint struct{ value *string }

// Set implements pflag.Value.
func (e endpoint) Set(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is no host and port, such as 0.0.0.0:7475", text)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(number, 10) != port {
		return fmt.Errorf("%q is no port: it lies in 1 to 65535, and 0 takes a free one", port)
	}
	*e.value = text
	return nil
}

// String implements pflag.Value.
func (e endpoint) String() string {
	if e.value == nil {
		return ""
	}
	return *e.value
}

// Type implements pflag.Value.
func (endpoint) Type() string { return "ADDRESS" }

// names are names and addresses of hosts.
type names struct{ value *[]string }

var _ pflag.SliceValue = names{}

// Set implements pflag.Value; it adds one.
func (n names) Set(text string) error {
	if net.ParseIP(text) == nil && join.CheckName(text) != nil {
		return fmt.Errorf("%q is no name or address of a machine; leave the port out", text)
	}
	*n.value = append(*n.value, text)
	return nil
}

// String implements pflag.Value.
func (n names) String() string {
	if n.value == nil || len(*n.value) == 0 {
		return ""
	}
	return fmt.Sprint(*n.value)
}

// Type implements pflag.Value.
func (names) Type() string { return "NAME" }

// Append implements pflag.SliceValue.
func (n names) Append(text string) error { return n.Set(text) }

// Replace implements pflag.SliceValue.
func (n names) Replace(texts []string) error {
	before := *n.value
	*n.value = nil
	for _, text := range texts {
		if err := n.Set(text); err != nil {
			*n.value = before
			return err
		}
	}
	return nil
}

// GetSlice implements pflag.SliceValue.
func (n names) GetSlice() []string { return *n.value }
