"""What programs and the command line call: plan (`entry`), simulate, compare, validate. Read `entry` first."""
