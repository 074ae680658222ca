// Package release has no code: its tests try what a release consists of, the script that installs one and the systemd
// units.
package release
