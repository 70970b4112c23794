"""A folder of its own for the file that spark-submit runs: Python looks for modules beside a script first, and the commands'
own folder has an `inspect`."""
