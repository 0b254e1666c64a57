-- Choose the known queues that a claim looks at. Defines a function for claim.lua; reads no KEYS or ARGV.
-- Anybody may invent tenants, and Redis serves nobody else during a claim. So a claim looks at a bounded number
-- of queues: first at those that may hold jobs of the highest level, then at others, and the next claim at those
-- that follow. SSCAN returns every name in one round of its cursor, so each queue is looked at.
local MAX_QUEUES_READ = 128  -- names of known queues up to which a claim reads all of them
local MIN_CANDIDATES, MAX_CANDIDATES = 32, 128  -- queues that a claim considers if there are more names
local MAX_NAMES_READ = 512  -- names that it reads to find them; others may be queues of other models

-- Call `add` for names behind `cursor` until it accepted `wanted` of them. Return the next cursor and how many
-- it accepted.
local function read_names(key, cursor, wanted, add)
  local total, names_read, accepted = set_size(key), 0, 0
  while accepted < wanted and names_read < math.min(MAX_NAMES_READ, total) do
    local answer = redis.call('SSCAN', key, cursor or '0', 'COUNT', wanted)
    cursor = answer[1]
    names_read = names_read + #answer[2]
    for _, name in ipairs(answer[2]) do
      if add(name) then accepted = accepted + 1 end
    end
  end
  return cursor, accepted
end

-- Call `add(name, urgent)` for known queues; it returns whether it takes the queue. `cursors` keeps the fields
-- `cursor` and `urgent_cursor` from claim to claim. Return whether these were all queues.
local function read_known_queues(known, cursors, wanted_images, add)
  if set_size(known) <= MAX_QUEUES_READ then
    for _, name in ipairs(redis.call('SMEMBERS', known)) do add(name, false) end
    cursors.cursor, cursors.urgent_cursor = nil, nil
    return true
  end
  local wanted, seen = math.max(MIN_CANDIDATES, math.min(wanted_images, MAX_CANDIDATES)), {}
  local function add_once(urgent)
    return function(name)
      if seen[name] then return false end
      seen[name] = true
      return add(name, urgent)
    end
  end
  local accepted
  cursors.urgent_cursor, accepted =
    read_names(urgent_queues(known), cursors.urgent_cursor, wanted, add_once(true))
  -- Urgent queues never take all places: what they hold may not fit the batch.
  wanted = math.max(wanted - accepted, MIN_CANDIDATES / 2)
  cursors.cursor = read_names(known, cursors.cursor, wanted, add_once(false))
  return false
end
