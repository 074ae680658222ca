// Package release has no code: its tests try what a release consists of, the script that installs one, the systemd
// units and the settings of the compose file, against what reads them.
package release
