"""What to do: verdicts on lines drawn beforehand, a policy per content and load, two studies side by side."""
